package learn

import (
	"math/rand/v2"

	"github.com/rackweave/rackweave/bench/study/samples"
)

const (
	images  = samples.Images
	pixels  = samples.Pixels
	classes = samples.Classes
)

// image is a handwritten digit.
type image = samples.Image

// Folds is the number of ways to divide the images.
const Folds = 5

const testImages = 540

// split divides the images into those to train with and those to test with. Test sets of different folds begin at different images.
func split(fold int) (train, test []image) {
	order := rand.New(rand.NewPCG(1, 0)).Perm(images)
	first := fold * images / Folds
	all := samples.Digits()
	for i := range images {
		to := &train
		if i < testImages {
			to = &test
		}
		*to = append(*to, all[order[(first+i)%images]])
	}
	return train, test
}

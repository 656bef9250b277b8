package report

import "fmt"

// Codecs is the traffic of exchanges with codecs, and their losses.
type Codecs struct {
	Names string `json:"names"` // of gradients and answers
	// Gradients and Answers are those of one worker in one exchange.
	Gradients Coded `json:"gradients"`
	Answers   Coded `json:"answers"`
	// Residual is the norm of what the last gradients left for the next ones, over the norm of the gradients.
	Residual float64 `json:"residual"`
}

// Coded is bytes of a direction, as they travelled and without codecs.
type Coded struct {
	Bytes uint64 `json:"bytes"`
	Raw   uint64 `json:"raw"`
	// Distortion is the squares of what was lost over those of what was compressed, of all workers since they joined.
	Distortion float64 `json:"distortion"`
}

// Ratio returns the bytes over those without codecs.
func (c Coded) Ratio() float64 { return float64(c.Bytes) / float64(max(c.Raw, 1)) }

func (c Coded) String() string {
	return fmt.Sprintf("%d B of %d (%.4f, distortion %.3g)", c.Bytes, c.Raw, c.Ratio(), c.Distortion)
}

func (c *Codecs) String() string {
	return fmt.Sprintf("%s: a worker sends %v and receives %v in an exchange; its residual is %.3g of its gradients", c.Names, c.Gradients,
		c.Answers, c.Residual)
}

package format

import (
	"bufio"
	"bytes"
	"io"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/rackweave/rackweave/service/api"
)

// maxManifestBytes limits a manifest that is read.
const maxManifestBytes = 1 << 20

var manifestMagic = []byte("RWCKMAN1\n")

// WriteManifest writes a manifest: a line and JSON.
func WriteManifest(w io.Writer, m *api.CheckpointManifest) error {
	text, err := protojson.MarshalOptions{Multiline: true}.Marshal(m)
	if err == nil {
		_, err = w.Write(append(append(bytes.Clone(manifestMagic), text...), '\n'))
	}
	return err
}

// ReadManifest reads a manifest. It returns one without parts if the file is a checkpoint.
func ReadManifest(r io.Reader) (*api.CheckpointManifest, error) {
	b := bufio.NewReader(io.LimitReader(r, maxManifestBytes))
	head, _ := b.Peek(len(manifestMagic)) // a shorter file has other bytes
	m := &api.CheckpointManifest{}
	switch {
	case bytes.HasPrefix(head, magic):
		return m, nil
	case !bytes.Equal(head, manifestMagic):
		return nil, corrupt("it starts with neither %q nor %q", magic, manifestMagic)
	}
	text, err := io.ReadAll(b)
	if err != nil {
		return nil, err
	}
	if err := protojson.Unmarshal(text[len(manifestMagic):], m); err != nil {
		return nil, corrupt("manifest: %v", err)
	}
	return m, nil
}

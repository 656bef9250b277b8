package hierarchy

import "errors"

// ErrCluster is what every error about a cluster wraps.
var ErrCluster = errors.New("bad cluster")

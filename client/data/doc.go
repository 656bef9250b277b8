// Package data is a worker's end of the service that deals the rows of training sets: which rows each batch has. The worker reads
// its own copy of the data.
//
// A row counts as trained on once the worker has reported that the gradient of its batch was applied. Rows of batches that it holds
// without that report are dealt again if it is lost, or if the job is restored from a checkpoint.
package data

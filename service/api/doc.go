// Package api is the control plane's schema (job.proto) as generated Go, and what client and server must compute alike.
// service/generate.sh makes the generated files.
package api

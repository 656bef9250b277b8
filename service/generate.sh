#!/usr/bin/env bash
# Regenerates the Go code of the control plane's protobuf schema. Needs protoc; the plug-ins are tools of go.mod.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v protoc >/dev/null || { echo "generate: protoc is missing: apt-get install protobuf-compiler" >&2; exit 1; }
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
go build -o "$bin" google.golang.org/protobuf/cmd/protoc-gen-go connectrpc.com/connect/cmd/protoc-gen-connect-go
protoc --proto_path=service/api --plugin=protoc-gen-go="$bin/protoc-gen-go" \
	--plugin=protoc-gen-connect-go="$bin/protoc-gen-connect-go" \
	--go_out=service/api --go_opt=paths=source_relative \
	--connect-go_out=service/api --connect-go_opt=paths=source_relative,simple=true \
	codec.proto data.proto job.proto rack.proto state.proto trace.proto

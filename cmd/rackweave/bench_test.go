package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func TestBadInputNamesTheThingAndTheRemedy(t *testing.T) {
	jobs := file(t, "jobs", "resnet\n")
	for _, tc := range []struct {
		args  string
		wants []string
	}{
		{"bench --model resnet5", []string{`"resnet5"`, "did you mean resnet50?"}},
		{"bench --optimizer adamw", []string{`"adamw"`, "did you mean adamw_"}},
		{"bench --dtype f8", []string{`"f8"`, "f32, bf16 or f16"}},
		{"bench --provider rdma", []string{`"rdma"`, "auto, shm, ibv, tcp"}},
		{"bench --bytes 0", []string{"model of 0", "0 elements: use 1"}},
		{"bench --bytes lots", []string{`"lots"`, "such as 100MB"}},
		{"bench --bytes 90TB", []string{"available", "smaller model or fewer workers"}},
		{"bench --bytes 4MB --model vgg16", []string{"--model and --bytes are given: use one"}},
		{"bench compare --model resnet5", []string{"did you mean resnet50?"}},
		{"bench --workers 0", []string{"workers is 0", "use 1 to 1024"}},
		{"bench --iters 0", []string{"0 iterations", "use 1 to"}},
		{"bench --chunk-bytes 1000", []string{"chunk size of 1000", "power of two"}},
		{"bench --hyper lr", []string{`"lr"`, "NAME=NUMBER"}},
		{"bench --hyper lr=1", []string{`sum has no hyper-parameter "lr"`, "use scale, clip"}},
		{"bench --optimizer sgd_torch --hyper beta1=0.9",
			[]string{`sgd_torch has no hyper-parameter "beta1"`, "use lr, wd, scale, clip, momentum, dampening"}},
		{"bench --bytes 4KiB --server aggregator", []string{`"aggregator"`, "http://host:7077"}},
		{"bench compare --workers 1,2", []string{"[1 2]", "use one"}},
		{"bench compare --with mxnet --compress int8", []string{"--compress and --with mxnet", "use one of the two"}},
		{"bench --compress int3", []string{`unknown codec "int3"`, "use one of none, int8"}},
		{"bench --compress int8 --dtype bf16", []string{"int8/int8 and bf16", "codecs shorten f32"}},
		{"bench compare --with nccl", []string{`"nccl"`, "use gloo, mpi, or mxnet alone"}},
		{"bench --bytes 4KiB --jobs 0", []string{"0 jobs: use 1 or more"}},
		{"bench --sparse=", []string{"--sparse", `unknown setting ""`, "use rows, width"}},
		{"bench --sparse row=5", []string{"--sparse", `unknown setting "row=5"`, "use rows, width"}},
		{"bench --sparse rows=10,width=8190", []string{"rows of 32760 bytes and 20 more", "chunk of 32768", "larger --chunk-bytes"}},
		{"bench --sparse rows=10 --bytes 4KiB", []string{"--sparse is given beside", "use one"}},
		{"bench --sparse rows=10 --compress int8", []string{"rows of an embedding and codecs", "use one of the two"}},
		{"bench --sparse rows=10 --jobs 2 --flood", []string{"a flood of whole tensors", "leave one"}},
		{"bench compare --sparse rows=10 --with mpi",
			[]string{"--with mpi and --optimizer sum", "--with gloo without", "--with mxnet --optimizer"}},
		{"bench compare --sparse rows=10 --with mxnet", []string{"--with mxnet and --optimizer sum", "--with gloo without"}},
		{"bench compare --sparse rows=10 --with gloo --optimizer sgd_mxnet",
			[]string{"--with gloo and --optimizer sgd_mxnet", "--with mxnet --optimizer"}},
		{"topo --model none", []string{`"none"`}},
		{"topo --cores 4096", []string{"4096 cores asked for"}},
		{"topo --chunk-bytes 7", []string{"chunk size of 7"}},
		{"token make ../x", []string{`"../x"`, "use 1 to 64 letters"}},
		{"rxe", []string{"rxe: use up or down"}},
		{"rxe sideways", []string{"rxe sideways: use up or down"}},
		{"policy set ssp:z=1 --job j", []string{"did you mean s?"}},
		{"policy set asp --job j --server http://127.0.0.1:1 --timeout 2s", []string{"127.0.0.1:1", "refused: is it running (rackweave serve)"}},
		{"drain --server aggregator", []string{`"aggregator"`, "http://host:7077"}},
		{"drain --after -1s", []string{"after -1s", "use 0"}},
		{"drain --after 2000h", []string{"after 2000h", "use 0"}},
		{"status --server aggregator", []string{`"aggregator"`, "http://host:7077"}},
		{"status --server http://127.0.0.1:1 --timeout 2s", []string{"127.0.0.1:1", "refused: is it running (rackweave serve)"}},
		{"serve --listen 127.0.0.1:0 --log-level loud", []string{`"loud"`, "debug, info, warn or error"}},
		{"serve --listen 127.0.0.1:0 --jobs-file " + jobs, []string{`"resnet"`, "NAME=TOKEN"}},
		{"serve --listen 127.0.0.1:0 --provider-options tcp", []string{`"tcp"`, "PROVIDER:key=value"}},
		{"serve --listen 127.0.0.1:0 --providers smoke", []string{`"smoke"`, "shm, ibv"}},
		{"serve --listen 127.0.0.1:0 --tls-cert aggregator.pem", []string{"certificate and a key"}},
		{"serve --listen 7077", []string{"listen on 7077", "HOST:PORT or :PORT"}},
		{"serve --listen 127.0.0.1:0 --providers tcp --provider-options tcp:gid=3", []string{`"gid"`, "it has listen, advertise,"}},
		{"serve --listen 127.0.0.1:0 --providers shm --provider-options shm:gid=3", []string{`"gid"`, "it has users"}},
	} {
		t.Run(tc.args, func(t *testing.T) { fails(t, strings.Fields(tc.args), tc.wants...) })
	}
}

// The keys that readers of results rely on.
var resultKeys = []string{
	"machine", "provider", "workers", "model", "bytes", "iterations", "time_us", "p99_over_mean", "algbw_gbs", "busbw_gbs",
	"goodput_gbs", "roofline", "wrong", "checksum",
}

func TestBenchPrintsJSON(t *testing.T) {
	out, err := run(t, "bench", "--bytes", "1MB", "--workers", "2", "--iters", "2", "--warmup", "1", "--provider", "shm", "--verify",
		"--json", "-")
	if err != nil {
		t.Fatal(err)
	}
	var result map[string]any
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	for _, key := range resultKeys {
		if _, ok := result[key]; !ok {
			t.Errorf("the result lacks %q:\n%s", key, out)
		}
	}
	for _, key := range []string{"min", "mean", "p50", "p99", "max"} {
		if v, ok := result["time_us"].(map[string]any)[key].(float64); !ok || v <= 0 {
			t.Errorf("time_us lacks %q:\n%s", key, out)
		}
	}
	if result["checksum"] != result["reference_checksum"] || result["wrong"] != 0.0 || result["verified"] != true {
		t.Errorf("not verified:\n%s", out)
	}
	if roof := result["roofline"].(map[string]any); roof["name"] != "memory" || roof["gbs"].(float64) <= 0 ||
		roof["share"].(float64) <= 0 {
		t.Errorf("roofline %v", roof)
	}
}

func TestBenchMeasuresSeveralNumbersOfWorkers(t *testing.T) {
	path := t.TempDir() + "/results.json"
	out, err := run(t, "bench", "--bytes", "1MB", "--workers", "1,3", "--iters", "2", "--warmup", "0", "--provider",
		"tcp", "--no-roofline", "--json", path)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var results []struct{ Workers int }
	if err := json.Unmarshal(text, &results); err != nil || len(results) != 2 || results[0].Workers != 1 || results[1].Workers != 3 {
		t.Errorf("%v: want results of 1 and of 3 workers:\n%s", err, text)
	}
	if strings.Count(out, " 1000000 ") != 2 || strings.Count(out, "algbw") != 1 {
		t.Errorf("want two rows under one header:\n%s", out)
	}
}

func TestAResultThatCannotBeWrittenIsAnErrorBeforeTheWork(t *testing.T) {
	fails(t, strings.Fields("bench --bytes 1MB --iters 1000000 --json /nonexistent/result.json"), "/nonexistent/result.json")
}

// Element types are compared by the same number of elements, or by the same bytes on the wire.
func TestASizeIsOfTheWireOrOfF32(t *testing.T) {
	for _, tc := range []struct {
		flags modelFlags
		want  uint64
	}{
		{modelFlags{bytes: "1MB", dtype: "f32"}, 250_000}, {modelFlags{bytes: "1MB", dtype: "bf16"}, 500_000},
		{modelFlags{f32Bytes: "1MB", dtype: "f32"}, 250_000}, {modelFlags{f32Bytes: "1MB", dtype: "bf16"}, 250_000},
	} {
		if m, _, err := tc.flags.read(); err != nil || m.Params() != tc.want {
			t.Errorf("%+v: %d elements, want %d: %v", tc.flags, m.Params(), tc.want, err)
		}
	}
	fails(t, strings.Fields("bench --bytes 1MB --f32-bytes 1MB"), "--f32-bytes is given beside --model or --bytes: use one")
}

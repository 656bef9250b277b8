# Every target installs what it needs and is missing (Debian packages, as root or with sudo), and says so.

GO ?= go
BIN := bin/rackweave
BUILD_PACKAGES := libibverbs-dev
# The Python package is tested with Debian's torch, which only Debian's Python finds.
PYTHON ?= /usr/bin/python3
PYTHON_PACKAGES := $(BUILD_PACKAGES) python3-torch python3-numpy python3-sklearn python3-venv openmpi-bin
TEST_PACKAGES := $(PYTHON_PACKAGES) debootstrap libopenmpi-dev qemu-system-x86 busybox-static kmod iproute2 \
	rdma-core ibverbs-providers ibverbs-utils perftest
LINT_PACKAGES := $(BUILD_PACKAGES) clang-format cppcheck

MODULE := github.com/rackweave/rackweave
PACKAGES := ./...
# Code that needs no C: plans, codecs, machines, references, models, reports.
PURE := ./chunk/... ./codec/... ./data/... ./policy/... ./hierarchy/... ./aggregate/optim/... ./aggregate/reduce/... \
	./client/failover/... ./bench/models/... ./bench/report/... ./lab/study/overlap ./lab/study/transfers ./pqueue/... \
	./service/membership/view/...
BUT_PURE = $(filter-out $(shell $(GO) list $(PURE)),$(shell $(GO) list $(PACKAGES)))
# vet has seen all, and stacks need no DWARF: neither is made again for every package and detector.
GO_TEST = $(GO) test -vet=off -ldflags=-w -timeout 30m
# ONLY='%/aggregate %/verbs' tests those of a target's packages, BUT=… all others.
chosen = $(if $(ONLY),$(filter $(ONLY),$(1)),$(filter-out $(BUT),$(1)))
# C, run under AddressSanitizer and UndefinedBehaviorSanitizer.
SANITIZED := ./cgo/... ./verbs/... ./aggregate
UBSAN := -fsanitize=undefined -fno-sanitize-recover=all
# What C reads and writes is always checked, in Go's memory too. What Go does is checked where it reaches C's memory by address.
# With more debugging information than lines (-g1) kernels take half as long again to compile.
ASAN := -asan -gcflags=all=-asan=0 $(foreach p,cgo/... verbs/... numa/... aggregate,-gcflags=$(MODULE)/$(p)=)

SEEDS ?= 2000
PACED_SEEDS ?= 5000
SEED ?= 0

.PHONY: all build lib demo vet lint test frameworks test-pure test-packages test-race test-sanitized test-python \
	test-python-package test-python-mxnet test-python-wheel test-trixie test-long wheel example-torch example-mxnet bench-torch \
	sim fuzz soak learn compress data lab racks generate clean

all: build

build:
	@scripts/need.sh $(BUILD_PACKAGES)
	$(GO) build -o bin/ ./cmd/...

# The data path as a shared library with a C interface, for the framework shims.
lib:
	@scripts/need.sh $(BUILD_PACKAGES)
	scripts/build-library.sh bin/librackweave.so.0

# Of the two programs the demo needs one, and builds no etcd.
demo:
	@scripts/need.sh $(BUILD_PACKAGES)
	$(GO) build -o $(BIN) ./cmd/rackweave
	$(BIN) bench --model resnet50 --workers 4 --optimizer sgd_mxnet --hyper momentum=0.9 --iters 20 --warmup 3 --verify

# What the compiler leaves open.
vet:
	@scripts/need.sh $(BUILD_PACKAGES)
	GOGC=800 $(GO) vet ./...

# Layout and static analysis of Go and C.
lint: vet
	@scripts/need.sh $(LINT_PACKAGES)
	scripts/lint.sh

test:
	scripts/test.sh $(TEST_PACKAGES) $(LINT_PACKAGES)

# Checks that take minutes, or measure: run it before a release. RACKWEAVE_LONG=1 lets a test do its long form.
test-long: build lib
	@scripts/need.sh $(TEST_PACKAGES)
	RACKWEAVE_LONG=1 $(GO_TEST) -v -p 1 $$(grep -rl --include='*_test.go' RACKWEAVE_LONG . | xargs -r -n1 dirname | sort -u)
	$(MAKE) test-race RACED="$(RACED_LONG)"
	RACKWEAVE_LONG=1 $(MAKE) test-race RACED=$(MODULE)/client
	RACKWEAVE_LONG=1 $(MAKE) test-python-package test-python-wheel test-trixie
	scripts/fuzz.sh 20000

# What tests of the framework shims run in, downloaded.
frameworks:
	@scripts/need.sh $(TEST_PACKAGES)
	scripts/mxnet-env.sh

test-pure:
	CGO_ENABLED=0 $(GO_TEST) $(PURE)

# By default one at a time: some fill the machine. lab has a step of its own in scripts/test.sh.
ABREAST ?= 1
test-packages:
	@scripts/need.sh $(BUILD_PACKAGES)
	$(GO_TEST) -p $(ABREAST) $(call chosen,$(filter-out %/rackweave/lab,$(BUT_PURE)))

# The race detector leaves out packages whose tests have no goroutines, cgo/kernel and cgo/monitor, whose goroutines share memory in
# C alone, of which the detector sees nothing, packages that drive programs, which they build without it, and packages with etcd's
# server or gonum, which take a minute to build with it. Benchmarks run what others race already, and have their turn in test-long.
UNRACED := $(MODULE) $(MODULE)/bench% $(MODULE)/doctor $(MODULE)/lab/% $(MODULE)/cmd/% %/include %/cgo/kernel %/cgo/monitor \
	%/service/api %/service/api/apiconnect %/service/checkpoint/format %/service/etcd/server %/service/membership
RACED_LONG := $(addprefix $(MODULE)/,bench bench/internal/command bench/report bench/roofline bench/study bench/study/data \
	bench/study/learn bench/study/local bench/study/simulate lab/racks)
RACED = $(call chosen,$(filter-out $(UNRACED),$(BUT_PURE)))

# The detector prints a race when it sees it. By default every process then waits a second more at its end. C, of which it sees
# nothing, needs no debugging information.
test-race:
	@scripts/need.sh $(BUILD_PACKAGES)
	CGO_CFLAGS=-O2 GORACE=atexit_sleep_ms=10 $(GO_TEST) -race -short $(RACED)

test-sanitized:
	@scripts/need.sh $(BUILD_PACKAGES)
	CGO_CFLAGS="-g1 -O1 $(UBSAN)" CGO_LDFLAGS="$(UBSAN)" $(GO_TEST) $(ASAN) -short $(call chosen,$(shell $(GO) list $(SANITIZED)))

# The Python package, with the library and the aggregator of this tree, in parts that can run side by side.
test-python: test-python-package test-python-mxnet test-python-wheel

test-python-package: build lib
	@scripts/need.sh $(PYTHON_PACKAGES)
	cd python/tests && PYTHONPATH=../src RACKWEAVE_LIBRARY=$(CURDIR)/bin/librackweave.so.0 $(PYTHON) -m unittest discover -v

test-python-mxnet: build lib
	@scripts/need.sh $(PYTHON_PACKAGES)
	scripts/mxnet-env.sh
	cd python/tests/mxnet && $(CURDIR)/build/mxnet-venv/bin/python -m pytest -q

test-python-wheel: build lib
	@scripts/need.sh $(PYTHON_PACKAGES)
	PYTHON=$(PYTHON) scripts/test-wheel.sh

# rackweave.torch with the PyTorch of Debian trixie.
test-trixie: build lib
	@scripts/need.sh debootstrap
	scripts/test-trixie.sh

# Trains handwritten digits with PyTorch in four workers: through Gloo, then through RackWeave.
example-torch: build lib
	@scripts/need.sh $(PYTHON_PACKAGES)
	@for way in --gloo ''; do PYTHONPATH=python/src RACKWEAVE_LIBRARY=$(CURDIR)/bin/librackweave.so.0 \
		$(BIN) run -n 4 -- $(PYTHON) examples/torch_digits.py $$way || exit 1; done

# Times a training step through DistributedDataParallel's hook and through Gloo, by turns, on networks of several sizes.
bench-torch: build lib
	@scripts/need.sh $(PYTHON_PACKAGES)
	@PYTHONPATH=python/src RACKWEAVE_LIBRARY=$(CURDIR)/bin/librackweave.so.0 \
		$(BIN) run -n 4 -- $(PYTHON) python/bench/torch_ddp.py $(BENCH)

example-mxnet: build lib
	@scripts/need.sh $(BUILD_PACKAGES) python3-venv
	@scripts/mxnet-env.sh
	@for way in --dist-sync ''; do PYTHONPATH=python/src RACKWEAVE_LIBRARY=$(CURDIR)/bin/librackweave.so.0 \
		$(BIN) run -n 4 -- build/mxnet-venv/bin/python examples/mxnet_digits.py $$way || exit 1; done

# build/rackweave-*.whl: the Python package with its library, for any Python 3 of this platform.
wheel: lib
	scripts/build-wheel.sh build

# A whole cluster under seeded schedules with faults, synchronous and under policies, which must also find the bugs that are
# planted. SEED=N replays one, with its trace; PACED=1 with it: of those under policies.
sim:
	@scripts/need.sh $(BUILD_PACKAGES)
ifeq ($(SEED),0)
	$(GO) test ./lab/simrack -run 'Schedules$$' -count=1 -v -timeout 30m -seeds $(SEEDS) -paced-seeds $(PACED_SEEDS)
	$(GO) test ./lab/simrack ./hierarchy ./hierarchy/outer -run TestPlantedBugs -count=1 -v
else
	$(GO) test ./lab/simrack -run 'Schedules$$' -count=1 -v -seed $(SEED) $(if $(PACED),-paced)
endif

# Every decoder, and the control plane as a whole, fed with what nobody would send, each so often.
FUZZ ?= 500000
fuzz:
	@scripts/need.sh $(BUILD_PACKAGES)
	scripts/fuzz.sh $(FUZZ)

# An hour of joins, kills, saves and attacks on one aggregator, whose memory, descriptors and threads must not grow.
SOAK ?= 1h
soak:
	@scripts/need.sh $(BUILD_PACKAGES)
	$(GO) test ./lab/attacks -run TestSoak -count=1 -v -soak $(SOAK) -timeout 3h

# What synchronization policies do to learning, in virtual time: in tables.
learn:
	@scripts/need.sh $(BUILD_PACKAGES)
	$(GO) run ./cmd/rackweave bench learn --seeds 10

# What codecs do to learning: tables, and plots in build/compress. COMPRESS='--only digits' studies a part. Then what they do to
# steps on emulated links, as root.
compress: build
	@scripts/need.sh $(BUILD_PACKAGES) iproute2
	@mkdir -p build
	$(GO) run ./cmd/rackweave bench learn --compress --seeds 20 --json build/compress.json $(COMPRESS)
	$(GO) run ./lab/cmd/study plot build/compress.json build/compress
	$(GO) run ./lab/cmd/racks compress --program $(BIN)

# What ways to deal rows do to learning, and to the time of an epoch: tables, and plots in build/data. DATA='--only speed' studies a
# part.
data:
	@scripts/need.sh $(BUILD_PACKAGES)
	@mkdir -p build
	$(GO) run ./cmd/rackweave bench learn --data --seeds 200 --json build/data.json $(DATA)
	$(GO) run ./lab/cmd/study plot build/data.json build/data

# The RDMA lab: QEMU guests with soft-RoCE. SHELL=1 gives a person a shell in one; it is also make's name for what runs its
# recipes, which stays what it was.
ifeq ($(SHELL),1)
override SHELL := /bin/sh
SHELL_IN_GUEST := 1
endif
lab:
	@scripts/need.sh $(TEST_PACKAGES)
ifdef SHELL_IN_GUEST
	$(GO) build -o $(BIN) ./cmd/rackweave
	$(GO) run ./lab/cmd/lab shell
else
	$(GO) test ./lab -count=1 -v -timeout 30m
endif

# Step times on emulated links, of ours and of other libraries: a table, and claims. Run it as root, again
# where it was interrupted. RACKS='--only REGEXP' measures a part, RACKS=--again all anew.
racks: build
	@scripts/need.sh iproute2 python3-torch python3-venv
	scripts/mxnet-env.sh
	$(GO) run ./lab/cmd/racks measure --program $(BIN) --json build/racks.json $(RACKS)

generate:
	@scripts/need.sh protobuf-compiler
	service/generate.sh
	$(GO) generate ./aggregate/optim

clean:
	rm -rf bin build

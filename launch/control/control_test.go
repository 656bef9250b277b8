package control

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rackweave/rackweave/launch"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The structs of wire.go have the layout that C gives those of control.h.
func TestStructsAreThoseOfTheHeader(t *testing.T) {
	var c strings.Builder
	fmt.Fprintln(&c, "#include <stddef.h>\n#include \"cgo/library/control.h\"")
	fmt.Fprintf(&c, "_Static_assert(CONTROL_MAX_BYTES == %d && RW_MAX_LANES == %d && RW_ENDPOINT_BYTES == %d, \"limits\");\n",
		maxBytes, maxLanes, endpointBytes)
	fmt.Fprintf(&c, "_Static_assert(CONTROL_JOIN == %d && CONTROL_CODECS == %d, \"kinds\");\n", kindJoin, kindCodecs)
	for name, v := range map[string]any{
		"control_head": head{}, "control_hyper": hyperValue{}, "control_join": joinRequest{}, "control_joined": joinAnswer{},
		"control_connect": connectRequest{}, "rw_endpoint": endpoint{}, "control_register": registerRequest{}, "control_tensor": tensor{},
		"control_tell": tellRequest{}, "control_accept": codecsRequest{}, "control_codecs": codecsAnswer{}, "rw_codec": gradientCodec{},
	} {
		typ := reflect.TypeOf(v)
		fmt.Fprintf(&c, "_Static_assert(sizeof(struct %s) == %d, \"size of %s\");\n", name, typ.Size(), name)
	}
	for field, of := range map[string]struct {
		name string
		v    any
		f    string
	}{
		"hyper": {"control_join", joinRequest{}, "Hyper"}, "record": {"control_joined", joinAnswer{}, "Record"},
		"lane_nics": {"control_joined", joinAnswer{}, "LaneNICs"}, "addr": {"rw_endpoint", endpoint{}, "Addr"},
		"staging": {"rw_endpoint", endpoint{}, "Staging"}, "wire_type": {"control_tensor", tensor{}, "WireType"},
	} {
		f, _ := reflect.TypeOf(of.v).FieldByName(of.f)
		fmt.Fprintf(&c, "_Static_assert(offsetof(struct %s, %s) == %d, \"%s.%s\");\n", of.name, field, f.Offset, of.name, field)
	}
	file := filepath.Join(t.TempDir(), "layout.c")
	if err := os.WriteFile(file, []byte(c.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-std=gnu11", "-I../..", "-fsyntax-only", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// serving starts an aggregator and a proxy to it.
func serving(t *testing.T, workers int) *Proxy {
	return servingBehind(t, workers, func(url string) string { return url })
}

// servingBehind starts an aggregator and a proxy to a URL that leads there.
func servingBehind(t *testing.T, workers int, leading func(url string) string) *Proxy {
	t.Helper()
	s, err := service.New(service.Options{Listen: "127.0.0.1:0", Providers: []string{"tcp"}, Cores: 1, Unpinned: true})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(t.Context()) }()
	p, err := Listen(launch.Place{Server: leading(s.URL()), Job: "j", Token: "t", Workers: workers})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-served
	})
	return p
}

// program is a worker's connection.
type program struct {
	t *testing.T
	c net.Conn
}

func dial(t *testing.T, p *Proxy, rank int) *program {
	t.Helper()
	c, err := net.Dial("unix", p.Path(rank))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(4 * time.Minute))
	return &program{t, c}
}

// call makes a request and returns the answer's payload, or the text of its error.
func (p *program) call(k kind, parts ...any) (payload []byte, failure string) {
	p.t.Helper()
	if err := send(p.c, k, parts...); err != nil {
		p.t.Fatal(err)
	}
	got, payload, err := receive(p.c)
	switch {
	case err != nil:
		p.t.Fatal(err)
	case got == kindError:
		return nil, string(payload)
	case got != k:
		p.t.Fatalf("answer of kind %d to a request of kind %d", got, k)
	}
	return payload, ""
}

func joinAs(provider string) joinRequest {
	r := joinRequest{TimeoutMS: 30_000}
	copy(r.Providers[:], provider)
	copy(r.Optimizer[:], "sgd_torch")
	r.NHyper = 1
	copy(r.Hyper[0].Name[:], "lr")
	r.Hyper[0].Value = 0.5
	return r
}

func TestWorkersJoinMeetAndLeave(t *testing.T) {
	p := serving(t, 2)
	done := make(chan string, 2)
	for rank := range 2 {
		w := dial(t, p, rank)
		go func() {
			done <- func() string {
				payload, failure := w.call(kindJoin, joinAs("tcp"))
				if failure != "" {
					return failure
				}
				var a joinAnswer
				if _, err := decode(payload, &a); err != nil {
					return err.Error()
				}
				if int(a.Rank) != rank || a.Workers != 2 || a.NLanes != 1 || a.Record[0] != 0.5 {
					return fmt.Sprintf("joined as %+v", a)
				}
				if _, failure := w.call(kindBarrier, tellRequest{Text: [256]byte{'b'}, TimeoutMS: 30_000}); failure != "" {
					return failure
				}
				_, failure = w.call(kindLeave, tellRequest{})
				return failure
			}()
		}()
	}
	for range 2 {
		if failure := <-done; failure != "" {
			t.Error(failure)
		}
	}
}

func TestAProgramThatNamesNoCodecsTakesThoseOfItsPlace(t *testing.T) {
	const raw, int8, int4 = 0, 1, 2 // as in headers
	p := serving(t, 1)
	p.place.Compress = "int4"
	for _, tc := range []struct {
		named string
		want  uint8
	}{{"", int4}, {"int8/none", int8}, {"none", raw}} {
		w, r, a := dial(t, p, 0), joinAs("tcp"), joinAnswer{}
		copy(r.Compress[:], tc.named)
		payload, failure := w.call(kindJoin, r)
		if _, err := decode(payload, &a); failure != "" || err != nil || a.Gradients.ID != tc.want {
			t.Errorf("%q: joined with codec %d: %s, %v", tc.named, a.Gradients.ID, failure, err)
		}
		if _, failure := w.call(kindLeave, tellRequest{}); failure != "" {
			t.Error(failure)
		}
		w.c.Close()
	}
}

func TestProgramsTakeOrRefuseCodecs(t *testing.T) {
	p := serving(t, 1)
	s := &seat{p: p}
	joined, asks := &member{seat: s, offers: newOffers()}, &member{seat: s}
	if _, err := asks.answer(kindCodecs, make([]byte, 8)); err != errNotJoined {
		t.Errorf("before the worker has joined: %v", err)
	}
	s.last.Store(joined)
	c := &api.Codecs{From: 7, Places: []uint8{1, 0}, Codecs: []*api.Codec{{}, {Id: 2}}}
	answers := make(chan []any, 2)
	ask := func(accepted uint32) {
		request := make([]byte, 8)
		order.PutUint32(request, accepted)
		answer, _ := asks.answer(kindCodecs, request)
		answers <- answer
	}
	go func() { ask(0); ask(1); ask(0) }()
	for i, want := range []error{nil, errCodecs} {
		if err := joined.offers.recode(nil, c); err != want {
			t.Errorf("offer %d: %v, want %v", i, err, want)
		}
		a := <-answers
		if len(a) != 3 || a[0].(codecsAnswer).From != 7 || a[1].(gradientCodec).ID != 2 || a[2].(gradientCodec).ID != 0 {
			t.Errorf("offer %d came as %v", i, a)
		}
	}
	close(joined.offers.end)
	<-answers
	c.Places[0] = 2
	for _, what := range []string{"a codec that is not there", "nobody asks"} {
		if err := joined.offers.recode(nil, c); err != errCodecs {
			t.Errorf("%s: %v", what, err)
		}
		c.Places[0] = 1
	}
}

func TestAConnectionThatEndsIsALostWorker(t *testing.T) {
	p := serving(t, 2)
	lost, left := dial(t, p, 0), dial(t, p, 1)
	joined := make(chan string, 1)
	go func() {
		_, failure := lost.call(kindJoin, joinAs("tcp"))
		joined <- failure
	}()
	if _, failure := left.call(kindJoin, joinAs("tcp")); failure != "" {
		t.Fatal(failure)
	}
	if failure := <-joined; failure != "" {
		t.Fatal(failure)
	}
	lost.c.Close()
	_, failure := left.call(kindBarrier, tellRequest{Text: [256]byte{'b'}, TimeoutMS: 30_000})
	if !strings.Contains(failure, "worker 0") {
		t.Errorf("the other worker's barrier: %q, want worker 0 named", failure)
	}
}

func TestRequestsThatMakeNoSenseAreRefused(t *testing.T) {
	p := serving(t, 1)
	w := dial(t, p, 0)
	for _, c := range []struct {
		k     kind
		parts []any
		want  string
	}{
		{kindBarrier, []any{tellRequest{}}, "has not joined"},
		{kindJoin, []any{[]byte("short")}, "too short"},
		{kindJoin, []any{joinRequest{NHyper: 17}}, "17 hyper-parameters"},
		{kindJoin, []any{joinAs("no-such")}, "no provider suits"},
		{kindJoin, []any{joinAs("tcp")}, ""},
		{kindJoin, []any{joinAs("tcp")}, "joined already"},
		{99, nil, "unknown kind 99"},
		{kindConnect, []any{connectRequest{}, []byte("half an endpoint")}, "another version"},
		{kindRegister, []any{registerRequest{NTensors: 2}, tensor{}}, "another version"},
		{kindRegister, []any{registerRequest{NTensors: 1}, tensor{NDim: 9}}, "9 dimensions"},
	} {
		if _, failure := w.call(c.k, c.parts...); !strings.Contains(failure, c.want) || c.want == "" && failure != "" {
			t.Errorf("request of kind %d: %q, want %q", c.k, failure, c.want)
		}
	}
}

// resetting returns what leads to a URL, and resets its first connections.
func resetting(t *testing.T, first int) (leading func(url string) string, came *atomic.Int32) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	came = &atomic.Int32{}
	return func(url string) string {
		var running sync.WaitGroup
		running.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				running.Go(func() {
					defer c.Close()
					if came.Add(1) <= int32(first) {
						c.Read(make([]byte, 1)) // the request is on its way
						c.(*net.TCPConn).SetLinger(0)
						return
					}
					there, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
					if err != nil {
						return
					}
					running.Go(func() { io.Copy(there, c); there.Close() })
					io.Copy(c, there)
				})
			}
		})
		t.Cleanup(func() { l.Close(); running.Wait() })
		return "http://" + l.Addr().String()
	}, came
}

func TestAFirstContactThatIsResetIsRepeated(t *testing.T) {
	for _, resets := range []int{3, 1 << 30} {
		leading, came := resetting(t, resets)
		w := dial(t, servingBehind(t, 1, leading), 0)
		if _, failure := w.call(kindJoin, joinAs("tcp")); (failure == "") != (resets == 3) {
			t.Errorf("of %d resets: %q", resets, failure)
		}
		if n := came.Load(); n < 4 || n > 6 {
			t.Errorf("of %d resets: it came %d times, want 4 to 6", resets, n)
		}
	}
}

func TestAWorkersTokenGoesInClearToAnotherHostOnlyIfTold(t *testing.T) {
	for _, insecure := range []bool{false, true} {
		p, err := Listen(launch.Place{Server: "http://192.0.2.1:1", Token: "secret", Insecure: insecure, Here: 1})
		if err != nil {
			t.Fatal(err)
		}
		r := joinAs("tcp")
		r.TimeoutMS = 50
		_, failure := dial(t, p, 0).call(kindJoin, r)
		if strings.Contains(failure, api.ErrInClear.Error()) == insecure {
			t.Errorf("insecure %v: %v", insecure, failure)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

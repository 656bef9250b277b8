package service_test

import (
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"testing"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/data/manifest"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
)

// Losses of groups reach the sets that favour some, from the next epoch on.
func TestReportedLossesOfGroupsDecideDraws(t *testing.T) {
	dir := t.TempDir()
	w, err := manifest.NewWriter(filepath.Join(dir, "m"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		if err := w.Add(i % 2); err != nil {
			t.Fatal(err)
		}
	}
	h := manifest.Header{How: "stratified", Start: "rotate", Workers: 1}
	if err := errors.Join(w.Finish(&h, []string{"a", "b"}), w.Close()); err != nil {
		t.Fatal(err)
	}
	s, _ := serve(t, service.Options{DataDir: dir})
	session := members(t, s, "j", "stream", 1)[0]
	d := dealer(s, session, "")
	if _, err := d.Open(within(t), &api.OpenDataRequest{Manifest: "m", Batch: 3, Favour: 1}); err != nil {
		t.Fatal(err)
	}
	rpc := apiconnect.NewJobServiceClient(&http.Client{Transport: direct{s.Handler()}}, "http://x",
		api.Identify(func() string { return session }, ""))
	if _, err := rpc.ReportLoss(within(t), &api.ReportLossRequest{Loss: 1, GroupLosses: []float64{1, 2, 3}}); connect.CodeOf(err) !=
		connect.CodeInvalidArgument {
		t.Errorf("losses of three groups of two: error %v", err)
	}
	if _, err := rpc.ReportLoss(within(t), &api.ReportLossRequest{Loss: 1, GroupLosses: []float64{1, 3}}); err != nil {
		t.Fatal(err)
	}
	state, err := d.State(within(t), &api.DataStateRequest{Set: "train"})
	if err != nil {
		t.Fatal(err)
	}
	if draws := state.State.Draws; len(draws) != 1 || draws[0].Epoch != 1 || !slices.Equal(draws[0].Rows, []uint64{3, 9}) {
		t.Errorf("draws %v, want 3 and 9 of 12 rows in epoch 1", draws)
	}
}

package image_test

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image"
)

// TestPull takes images from a registry on this machine.
func TestPull(t *testing.T) {
	layers := testLayers(t)
	oci := newImage(t, runtime.GOARCH, types.OCILayer, layers...)
	foreign := newImage(t, "s390x", types.OCILayer, layers[0])
	falseLayer := gzipped(t, layers[0])
	lastLayer := must(oci.Manifest())(t).Layers[1].Digest.Hex
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	var stall, stopped = make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.Contains(r.URL.Path, "/secret/"):
			http.Error(w, `{"errors":[{"code":"DENIED"}]}`, http.StatusForbidden)
		case strings.Contains(r.URL.Path, "/slow/blobs/") && r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, must(oci.Manifest())(t).Layers[0].Digest.Hex):
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			close(stall)
			<-r.Context().Done()
			close(stopped)
		case strings.Contains(r.URL.Path, "/torn/blobs/") && r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, lastLayer):
			w.Header().Set("Content-Length", "100000")
			_, _ = w.Write([]byte("\x1f\x8b"))
			panic(http.ErrAbortHandler) // closes the connection
		case strings.Contains(r.URL.Path, "/false/blobs/") && r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, lastLayer):
			_, _ = w.Write(falseLayer)
		default:
			handler.ServeHTTP(w, r)
		}
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	for repo, img := range map[string]v1.Image{"one:1": oci, "foreign:1": foreign, "slow:1": oci, "torn:1": oci, "false:1": oci} {
		if err := remote.Write(must(name.ParseReference(host+"/"+repo))(t), img); err != nil {
			t.Fatal(err)
		}
	}
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: foreign, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}},
		mutate.IndexAddendum{Add: oci, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})
	if err := remote.WriteIndex(must(name.ParseReference(host+"/many:1"))(t), index); err != nil {
		t.Fatal(err)
	}
	st, _ := newStore(t)
	one := must(image.Pull(t.Context(), st, "one", host+"/one:1", image.Options{}))(t)
	checkTree(t, st, one)
	var last image.Progress
	many := must(image.Pull(t.Context(), st, "many", host+"/many:1", image.Options{Progress: func(p image.Progress) { last = p }}))(t)
	if !slices.Equal(one.Layers, many.Layers) || last.Done != last.Total || last.Done == 0 {
		t.Errorf("%+v %+v %+v", one, many, last)
	}
	for _, c := range []struct {
		ref, text string
		kind      fault.Kind
	}{
		{host + "/foreign:1", "image is for linux/s390x, not for linux/", fault.Invalid},
		{host + "/torn:1", "layer 2 of 2", fault.Unavailable},
		{host + "/false:1", "damaged", fault.Invalid},
		{host + "/absent:1", "absent", fault.NotFound},
		{host + "/secret:1", "secret", fault.Permission},
		{"127.0.0.1:1/x:1", "refused", fault.Unavailable},
		{"UPPER CASE", "reference", fault.Invalid},
	} {
		_, err := image.Pull(t.Context(), st, "bad", c.ref, image.Options{})
		if fault.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v (%s)", c.ref, err, fault.KindOf(err))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-stall; cancel() }()
	if _, err := image.Pull(ctx, st, "slow", host+"/slow:1", image.Options{}); !fault.Is(err, fault.Canceled) {
		t.Errorf("%v (%s)", err, fault.KindOf(err))
	}
	<-stopped
}

package sqlite_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/store/sqlite"
	"github.com/sandtree/sandtree/internal/store/storetest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("SQLITE_TEST_WRITER"); dir != "" {
		write(dir)
	}
	os.Exit(m.Run())
}

func open(t *testing.T, dir string) store.Store {
	t.Helper()
	db, err := sqlite.Open(t.Context(), filepath.Join(dir, "node.db"))
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func TestConformance(t *testing.T) { storetest.Run(t, open) }

// write adds templates until it is killed, and says which are in.
func write(dir string) {
	db, err := sqlite.Open(context.Background(), filepath.Join(dir, "node.db"))
	for i := 0; err == nil; i++ {
		id := fmt.Sprint(i)
		if err = db.AddTemplate(context.Background(), store.Template{ID: id, Name: "n" + id}); err == nil {
			fmt.Println(id)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func TestKillLosesNothing(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SQLITE_TEST_WRITER="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = append(said, lines.Text())
		if len(said) == 200 {
			_ = cmd.Process.Kill() // what it said meanwhile still comes
		}
	}
	_ = cmd.Wait()
	db := open(t, dir)
	defer db.Close()
	for _, id := range said {
		if _, err := db.Template(t.Context(), id); err != nil {
			t.Fatalf("after kill -9: %v", err)
		}
	}
	if len(said) < 200 {
		t.Fatalf("the writer said only %d", len(said))
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.db")
	raw, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Exec("PRAGMA user_version = 1000"); err != nil {
		t.Fatal(err)
	}
	raw.Close()
	if _, err := sqlite.Open(t.Context(), path); !fault.Is(err, fault.Unsupported) {
		t.Fatalf("Open: %v", err)
	}
}

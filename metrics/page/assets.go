// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed assets
var files embed.FS

// asset is one file of the page.
type asset struct {
	path string // of its address, a pattern of http.ServeMux
	kind string
	etag string
	text []byte
}

// assets are all of them. The folder uplot is somebody else's work, see
// scripts/update-uplot.sh; it is not called vendor since the go command leaves
// folders of that name out of modules.
var assets = mustAssets()

func mustAssets() (all []asset) {
	err := fs.WalkDir(files, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := files.ReadFile(name)
		sum := sha256.Sum256(text)
		a := asset{path: "/" + name, kind: kindOf(name), etag: `"` + hex.EncodeToString(sum[:12]) + `"`, text: text}
		if name == "assets/index.html" {
			a.path = "/{$}"
		}
		all = append(all, a)
		return err
	})
	if err != nil {
		panic(err) // the files are part of this binary
	}
	return all
}

// kindOf is the type of a file. The table of package mime is the machine's.
func kindOf(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return "text/plain; charset=utf-8"
}

// ServeHTTP implements http.Handler. Browsers keep the file, and ask whether it
// is still the same: after an update of egressd it is not.
func (a asset) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", a.kind)
	w.Header().Set("Etag", a.etag)
	w.Header().Set("Cache-Control", "no-cache")
	http.ServeContent(w, r, strings.TrimPrefix(a.path, "/"), time.Time{}, bytes.NewReader(a.text))
}

// Package layer reads the tar streams of image layers into trees.
//
// A [Stack] applies layers one upon the other under the rules of the OCI image
// specification (image-spec, layer.md) and as container runtimes do, without a
// file system to apply them to. It keeps the whole tree so far, the *view*,
// because a layer can only be understood upon those below it: parents that it
// does not list keep their attributes, paths lead through symbolic links of
// lower layers (lib to usr/lib), hard links name files of lower layers. Each
// layer also gives a *difference*, the tree of that layer alone in overlayfs's
// terms: deleted names are character devices 0/0, and directories that hide
// lower ones have the xattr trusted.overlay.opaque=y. Mounted as an overlay,
// the differences give the view.
//
// Tar streams are hostile. Paths are resolved within the tree alone, which is
// in memory; names, sizes and numbers are checked, and [Limits] bound what a
// stream can cost. Contents go to a [Spool].
package layer

// Package oci finds out what an image consists of, wherever it lies: an OCI
// image layout (a directory or a tar of one), a tar of `docker save`, a tar of a
// root file system, or a registry. It gives the layers as uncompressed tar
// streams whose digests are checked while they are read.
//
// All of it is hostile input: names are looked up below the layout's directory
// only, JSON is read up to a bound, and whatever is damaged, truncated, not what
// its digest says or made for another platform is an error of kind Invalid.
package oci

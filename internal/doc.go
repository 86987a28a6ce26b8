// Package internal holds the parts of sandtree that are not API. See
// ARCHITECTURE.md for the layout and the direction of imports.
package internal

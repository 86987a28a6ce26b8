module github.com/sandtree/sandtree

go 1.26

package cgroup_test

import "unsafe"

func ptr(p *int32) uintptr { return uintptr(unsafe.Pointer(p)) }

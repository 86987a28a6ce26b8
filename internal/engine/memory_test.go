package engine

import "testing"

func TestShortOfMemory(t *testing.T) {
	for _, c := range []struct {
		room         room
		short, spare bool
	}{
		{room{total: 24 << 30, available: 20 << 30}, false, true}, // what waits is a sandbox at its limit
		{room{total: 24 << 30, available: 5 << 30}, true, true},
		{room{total: 24 << 30, available: 1 << 30}, true, false},
	} {
		if c.room.short() != c.short || c.room.toSpare() != c.spare {
			t.Errorf("%+v: short %v, to spare %v", c.room, c.room.short(), c.room.toSpare())
		}
	}
}

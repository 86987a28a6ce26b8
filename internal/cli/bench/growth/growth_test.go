package growth

import "testing"

func TestCompare(t *testing.T) {
	c := Curve{Points: []Point{
		{X: 1, MS: map[string]float64{"checkpoint": 4, "rollback": 5}, StageMS: map[string]float64{"checkpoint/stop": 1, "checkpoint/snapshot": 1}},
		{X: 10, MS: map[string]float64{"checkpoint": 6, "rollback": 5}, StageMS: map[string]float64{"checkpoint/stop": 1, "checkpoint/snapshot": 3}},
		{X: 100, MS: map[string]float64{"checkpoint": 12, "rollback": 5}, StageMS: map[string]float64{"checkpoint/stop": 2, "checkpoint/snapshot": 8}},
	}}
	all := compare(c)
	if len(all) != 2 {
		t.Fatalf("%+v", all)
	}
	want := Growth{Name: "checkpoint", From: 4, To: 12, Ratio: 3, Stage: "snapshot", StageFrom: 1, StageTo: 8}
	if all[0] != want {
		t.Errorf("%+v, want %+v", all[0], want)
	}
	if all[1].Ratio != 1 || all[1].Stage != "" {
		t.Errorf("what does not grow: %+v", all[1])
	}
	if got := compare(Curve{Points: c.Points[:1]}); len(got) != 0 {
		t.Errorf("of one place: %+v", got)
	}
}

func TestPlaces(t *testing.T) {
	for _, a := range axes {
		w := &walk{axis: a}
		for _, to := range []int{0, 1, a.to, a.to * 2} {
			w.cfg.Max = to
			ps := w.places()
			for i := 1; i < len(ps); i++ {
				if ps[i] <= ps[i-1] {
					t.Errorf("%s to %d: %v", a.name, to, ps)
				}
			}
			if last := ps[len(ps)-1]; to > 0 && last != min(to, a.to) {
				t.Errorf("%s to %d ends at %d", a.name, to, last)
			}
		}
	}
}

package cli

import (
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/sandtree/sandtree/client"
)

// progress returns what shows the progress of long work, and what ends it. On
// anything but a terminal, and with --json, both do nothing.
func (inv *invocation) progress() (report func(client.Progress), done func()) {
	if inv.json || !onTerminal(inv.err) {
		return func(client.Progress) {}, func() {}
	}
	var bar *progressbar.ProgressBar
	stage := ""
	report = func(p client.Progress) {
		total := p.Total
		if total <= 0 {
			total = -1 // a spinner
		}
		if bar == nil || stage != p.Stage {
			if bar != nil {
				_ = bar.Clear()
			}
			stage = p.Stage
			bar = progressbar.NewOptions64(total,
				progressbar.OptionSetWriter(inv.err),
				progressbar.OptionSetDescription(printable(stage)),
				progressbar.OptionSetPredictTime(false),
				progressbar.OptionThrottle(100*time.Millisecond),
				progressbar.OptionClearOnFinish())
		}
		_ = bar.Set64(p.Done)
	}
	return report, func() {
		if bar != nil {
			_ = bar.Clear()
		}
	}
}

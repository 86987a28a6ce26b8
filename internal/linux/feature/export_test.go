package feature

import "context"

// RequireOf is Require of features with probes of the test's.
func RequireOf(ctx context.Context, probes map[string]func() error, features ...Feature) error {
	for i := range features {
		features[i].probe = probes[features[i].Name]
	}
	return require(ctx, features)
}

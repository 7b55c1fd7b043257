// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// maxCooldown is the sanity maximum for a lane's cooldown.
const maxCooldown = 24 * time.Hour

// ParseDuration reads how long an operator wants a lane closed.
func ParseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, fmt.Errorf("parse duration %q: write it with a unit, as in 30s or 5m", s)
	case d <= 0 || d > maxCooldown:
		return 0, fmt.Errorf("duration %v: must be above zero and at most %v", d, maxCooldown)
	}
	return d, nil
}

// decodeCooldown reads the body of POST /v1/cooldown; a zero duration clears.
func decodeCooldown(r io.Reader) (lane string, d time.Duration, err error) {
	var body Cooldown
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&body); err != nil {
		return "", 0, fmt.Errorf("read request: %w", err)
	}
	switch {
	case body.Lane == "":
		return "", 0, errors.New("no lane given")
	case body.Clear && body.Duration != "":
		return "", 0, errors.New("clear and duration exclude each other")
	case body.Clear:
		return body.Lane, 0, nil
	}
	d, err = ParseDuration(body.Duration)
	if err != nil {
		return "", 0, err
	}
	return body.Lane, d, nil
}

package planner

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

var rateUnits = []struct {
	suffix string
	bytes  float64
}{
	{"Tb/s", 1e12 / 8}, {"Gb/s", 1e9 / 8}, {"Mb/s", 1e6 / 8}, {"TB/s", 1e12}, {"GB/s", 1e9}, {"MB/s", 1e6},
	{"Tbps", 1e12 / 8}, {"Gbps", 1e9 / 8}, {"Mbps", 1e6 / 8},
}

// ParseRate reads a rate such as 100Gb/s or 12.5GB/s, and returns it in bytes per second.
func ParseRate(s string) (float64, error) {
	for _, u := range rateUnits {
		if number, ok := strings.CutSuffix(s, u.suffix); ok {
			if v, err := strconv.ParseFloat(strings.TrimSpace(number), 64); err == nil && v > 0 && !math.IsInf(v, 0) {
				return v * u.bytes, nil
			}
			break
		}
	}
	return 0, fmt.Errorf("%q is not a rate: write it as 100Gb/s or 12.5GB/s", s)
}

const mostRatio = 1e6 // an uplink of a millionth of its links is a mistake

// ParseRatio reads an oversubscription such as 4:1.
func ParseRatio(s string) (float64, error) {
	number, one, ok := strings.Cut(s, ":")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || ok && one != "1" || !(v > 0) || v > mostRatio {
		return 0, fmt.Errorf("%q is not an oversubscription: write it as 4:1", s)
	}
	return v, nil
}

package ratecontrol

const (
	greedyLaw = "greedy"
	aceLaw    = "ace"
)

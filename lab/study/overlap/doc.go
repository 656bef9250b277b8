// Package overlap computes what a training step takes when communication runs behind computation, for several ways to exchange
// gradients over one rate of link. It is pure; [Way.Step] has the model in words.
package overlap

//go:build !plant

package aggregate

const planted = plantNone

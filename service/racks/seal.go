package racks

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
)

// Seal returns a digest of fields that cannot be made without the secret.
func Seal(secret string, fields ...string) []byte {
	h := hmac.New(sha256.New, []byte(secret))
	for _, f := range fields {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(f)))
		h.Write(n[:])
		h.Write([]byte(f))
	}
	return h.Sum(nil)
}

// Sealed reports whether a seal is of these fields.
func Sealed(seal []byte, secret string, fields ...string) bool {
	return hmac.Equal(seal, Seal(secret, fields...))
}

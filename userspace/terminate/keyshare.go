// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"fmt"
	"reflect"
	"unsafe"

	utls "github.com/bogdanfinn/utls"
)

// Groups (RFC 8446 §4.2.7; IANA).
const (
	groupP256     = 23
	groupP384     = 24
	groupP521     = 25
	groupX25519   = 29
	groupX25519ML = 4588 // X25519MLKEM768
	mlkemKey      = 1184 // bytes of its ML-KEM part, which comes first
	lengthX25519  = 32
	lengthX25519M = mlkemKey + lengthX25519
)

// curveOf is the curve of a group that has one and can be made here.
func curveOf(group uint16) ecdh.Curve {
	switch group {
	case groupP256:
		return ecdh.P256()
	case groupP384:
		return ecdh.P384()
	case groupP521:
		return ecdh.P521()
	case groupX25519:
		return ecdh.X25519()
	}
	return nil
}

// keyShares are the shares that stand for those of a client: one for each, of
// the same group and length.
//
// The library keeps the private key of the first share alone. Which one counts
// is known once the ServerHello is there, so it is given the right one then.
type keyShares struct {
	public  []utls.KeyShare
	groups  []uint16 // of public, as the client had them
	private map[uint16]*ecdh.PrivateKey
	// shared says that the share of X25519 and the end of the hybrid one are
	// the same key, as Go's clients have it.
	shared bool
}

// sharesKept reports whether each share of h can be made.
func (h *hello) sharesKept() bool {
	for i, s := range h.shares {
		for _, other := range h.shares[:i] {
			if other.group == s.group {
				return false
			}
		}
		if !grease(s.group) && s.group != groupX25519ML && curveOf(s.group) == nil {
			return false
		}
	}
	return true
}

func newKeyShares(h *hello) (*keyShares, error) {
	if !h.sharesKept() {
		return nil, fmt.Errorf("%w: key shares", errShape)
	}
	k := &keyShares{private: map[uint16]*ecdh.PrivateKey{}, shared: h.sharedX25519()}
	for _, s := range h.shares {
		out := utls.KeyShare{Group: utls.CurveID(s.group)}
		switch curve := curveOf(s.group); {
		case grease(s.group):
			out.Data = s.data
		case curve != nil:
			key, err := curve.GenerateKey(rand.Reader)
			if err != nil {
				return nil, fmt.Errorf("make a key share: %w", err)
			}
			k.private[s.group] = key
			out.Data = key.PublicKey().Bytes()
		}
		// The hybrid one is left to the library, which alone can hold its key.
		k.public = append(k.public, out)
		k.groups = append(k.groups, s.group)
	}
	return k, nil
}

// sharedX25519 reports whether the client used one key in two shares.
func (h *hello) sharedX25519() bool {
	var alone, hybrid []byte
	for _, s := range h.shares {
		switch {
		case s.group == groupX25519:
			alone = s.data
		case s.group == groupX25519ML && len(s.data) == lengthX25519M:
			hybrid = s.data[mlkemKey:]
		}
	}
	return hybrid != nil && bytes.Equal(alone, hybrid)
}

// adopt completes the shares once the library has made the hybrid one, and
// drawn GREASE that is not the client's.
func (k *keyShares) adopt(held *utls.KeySharePrivateKeys) {
	for i, group := range k.groups {
		k.public[i].Group = utls.CurveID(group)
	}
	if held == nil {
		return
	}
	if key := hybridX25519(held); k.shared && key != nil {
		k.private[groupX25519] = key
		for i := range k.public {
			if k.public[i].Group == groupX25519 {
				k.public[i].Data = key.PublicKey().Bytes()
			}
		}
	}
	k.choose(held, groupX25519)
}

// choose puts the private key for a group where the library looks for it.
func (k *keyShares) choose(held *utls.KeySharePrivateKeys, group uint16) {
	if held == nil {
		return
	}
	key := k.private[group]
	if group == groupX25519ML {
		// The library first tries the one key it has on the X25519 part, so it
		// must be of that curve; what counts it takes from the hybrid one.
		key = hybridX25519(held)
	}
	if key == nil {
		for _, any := range k.private {
			key = any
		}
	}
	if key == nil {
		key = hybridX25519(held)
	}
	held.CurveID, held.Ecdhe = utls.CurveID(group), key
}

// hybridX25519 is the X25519 key within the hybrid share, nil if there is none.
// The library exports the struct and not this field of it.
func hybridX25519(held *utls.KeySharePrivateKeys) *ecdh.PrivateKey {
	field := reflect.ValueOf(held).Elem().FieldByName("mlkemEcdhe")
	if !field.IsValid() || field.Type() != reflect.TypeFor[*ecdh.PrivateKey]() {
		return nil
	}
	return *(**ecdh.PrivateKey)(unsafe.Pointer(field.UnsafeAddr()))
}

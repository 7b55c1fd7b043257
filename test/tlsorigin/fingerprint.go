// SPDX-License-Identifier: Apache-2.0

package tlsorigin

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// grease reports whether v is one of the values that clients send to keep
// servers tolerant (RFC 8701): both bytes alike, and each ends in 0xA.
func grease(v uint16) bool { return v>>8 == v&0xff && v&0xf == 0xa }

func withoutGrease(list []uint16) []uint16 {
	return slices.DeleteFunc(slices.Clone(list), grease)
}

// JA3 is the JA3 string of the hello and the MD5 of it, as salesforce/ja3
// defines them: version, ciphers, extensions, groups and point formats in the
// order of the wire, without GREASE, in decimal.
func (h *Hello) JA3() (text, sum string) {
	decimal := func(list []uint16) string {
		var all []string
		for _, v := range withoutGrease(list) {
			all = append(all, strconv.Itoa(int(v)))
		}
		return strings.Join(all, "-")
	}
	var points []uint16
	for _, p := range h.Points {
		points = append(points, uint16(p))
	}
	text = strings.Join([]string{
		strconv.Itoa(int(h.Version)), decimal(h.Ciphers), decimal(h.Extensions), decimal(h.Groups), decimal(points),
	}, ",")
	hash := md5.Sum([]byte(text))
	return text, hex.EncodeToString(hash[:])
}

// JA4 is the JA4 fingerprint of the hello over TCP as FoxIO-LLC/ja4 defines it,
// and raw the same with lists in the place of their hashes (JA4_r).
func (h *Hello) JA4() (sum, raw string) {
	ciphers := hexSorted(withoutGrease(h.Ciphers))
	known := withoutGrease(h.Extensions)
	rest := hexSorted(slices.DeleteFunc(slices.Clone(known), func(id uint16) bool {
		return id == extServerName || id == extALPN
	}))
	sni := "i"
	if h.HasSNI {
		sni = "d"
	}
	head := fmt.Sprintf("t%s%s%02d%02d%s", ja4Version(h), sni,
		min(99, len(withoutGrease(h.Ciphers))), min(99, len(known)), ja4ALPN(h.ALPN))
	// Signature algorithms keep their order. A hello without any has no "_".
	if signatures := withoutGrease(h.Signatures); len(signatures) > 0 {
		rest += "_" + hexList(signatures)
	}
	return head + "_" + ja4Hash(ciphers) + "_" + ja4Hash(rest), head + "_" + ciphers + "_" + rest
}

// ja4Version is the highest version offered.
func ja4Version(h *Hello) string {
	version := h.Version
	if offered := withoutGrease(h.Versions); len(offered) > 0 {
		version = slices.Max(offered)
	}
	switch version {
	case 0x0304:
		return "13"
	case 0x0303:
		return "12"
	case 0x0302:
		return "11"
	case 0x0301:
		return "10"
	case 0x0300:
		return "s3"
	case 0x0002:
		return "s2"
	}
	return "00"
}

// ja4ALPN is the first and the last character of the first protocol, of its
// hexadecimal form if one of them is neither letter nor digit.
func ja4ALPN(offered []string) string {
	if len(offered) == 0 || offered[0] == "" {
		return "00"
	}
	plain := func(c byte) bool {
		return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
	}
	p := offered[0]
	if !plain(p[0]) || !plain(p[len(p)-1]) {
		p = hex.EncodeToString([]byte(p))
	}
	return p[:1] + p[len(p)-1:]
}

func ja4Hash(list string) string {
	if list == "" {
		return "000000000000"
	}
	sum := sha256.Sum256([]byte(list))
	return hex.EncodeToString(sum[:])[:12]
}

func hexSorted(list []uint16) string {
	slices.Sort(list)
	return hexList(list)
}

func hexList(list []uint16) string {
	var all []string
	for _, v := range list {
		all = append(all, fmt.Sprintf("%04x", v))
	}
	return strings.Join(all, ",")
}

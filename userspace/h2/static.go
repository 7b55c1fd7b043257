// SPDX-License-Identifier: Apache-2.0

package h2

// staticLen is the number of entries of the static table.
const staticLen = 61

// static is the static table (RFC 7541 Appendix A), from index 1 on.
var static = func() (t [staticLen + 1]entry) {
	rows := [staticLen][2]string{
		{":authority"}, {":method", "GET"}, {":method", "POST"}, {":path", "/"}, {":path", "/index.html"},
		{":scheme", "http"}, {":scheme", "https"},
		{":status", "200"}, {":status", "204"}, {":status", "206"}, {":status", "304"},
		{":status", "400"}, {":status", "404"}, {":status", "500"},
		{"accept-charset"}, {"accept-encoding", "gzip, deflate"}, {"accept-language"}, {"accept-ranges"},
		{"accept"}, {"access-control-allow-origin"}, {"age"}, {"allow"}, {"authorization"}, {"cache-control"},
		{"content-disposition"}, {"content-encoding"}, {"content-language"}, {"content-length"},
		{"content-location"}, {"content-range"}, {"content-type"}, {"cookie"}, {"date"}, {"etag"}, {"expect"},
		{"expires"}, {"from"}, {"host"}, {"if-match"}, {"if-modified-since"}, {"if-none-match"}, {"if-range"},
		{"if-unmodified-since"}, {"last-modified"}, {"link"}, {"location"}, {"max-forwards"},
		{"proxy-authenticate"}, {"proxy-authorization"}, {"range"}, {"referer"}, {"refresh"}, {"retry-after"},
		{"server"}, {"set-cookie"}, {"strict-transport-security"}, {"transfer-encoding"}, {"user-agent"},
		{"vary"}, {"via"}, {"www-authenticate"},
	}
	for i, row := range rows {
		t[i+1] = entry{name: []byte(row[0]), value: []byte(row[1])}
	}
	return t
}()

// staticNames has the lowest index of each name of the static table.
var staticNames = func() map[string]uint8 {
	m := make(map[string]uint8, staticLen)
	for i := staticLen; i > 0; i-- {
		m[string(static[i].name)] = uint8(i)
	}
	return m
}()

// Indexes of the statuses that the static table has.
var staticStatuses = map[int]uint8{200: 8, 204: 9, 206: 10, 304: 11, 400: 12, 404: 13, 500: 14}

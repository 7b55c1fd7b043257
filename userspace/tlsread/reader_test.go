// SPDX-License-Identifier: Apache-2.0

package tlsread

import (
	"bytes"
	"errors"
	"slices"
	"testing"
)

// handshakes13 are the suites of TLS 1.3.
var handshakes13 = []uint16{0x1301, 0x1302, 0x1303}

// What a side may send in TLS 1.3, in ways that real ones seldom do.
func TestReader13(t *testing.T) {
	certificate := message(11, filled(700)...)
	for _, tt := range []struct {
		name  string
		side  Side
		write func(s *sealer) *sealer
		data  []int // lengths of what was filled
		kinds []ContentType
	}{
		{"plain", Client, func(s *sealer) *sealer {
			return s.shaken().data(10).data(0).data(maxPlain).record(Alert, 1, 0)
		}, []int{10, 0, maxPlain}, []ContentType{22, 20, 22, 23, 23, 23, 21}},
		{"retried", Client, func(s *sealer) *sealer {
			return s.hello().raw(ChangeCipherSpec, 1).shaken().data(10)
		}, []int{10}, []ContentType{22, 20, 22, 20, 22, 23}},
		{"hello split", Client, func(s *sealer) *sealer {
			h := clientHelloMessage(extSupportedVersions)
			s.raw(Handshake, h[:2]...).raw(Handshake, h[2:40]...).raw(Handshake, h[40:]...)
			return s.useHandshake().record(Handshake, finished()...).useTraffic().data(10)
		}, []int{10}, []ContentType{22, 22, 22, 22, 23}},
		{"messages share records and are split", Server, func(s *sealer) *sealer {
			flight := slices.Concat(message(8), certificate, message(15, filled(70)...), finished())
			s.hello().useHandshake()
			for _, part := range [][]byte{flight[:3], flight[3:5], flight[5:600], flight[600 : len(flight)-1], flight[len(flight)-1:]} {
				s.record(Handshake, part...)
			}
			return s.useTraffic().data(10)
		}, []int{10}, []ContentType{22, 22, 22, 22, 22, 22, 23}},
		{"key updates", Client, func(s *sealer) *sealer {
			s.shaken().data(10).record(Handshake, keyUpdate(1)...).useNext().data(11)
			return s.record(Handshake, keyUpdate(0)...).useNext().record(Handshake, keyUpdate(0)...).useNext().data(1200)
		}, []int{10, 11, 1200}, []ContentType{22, 20, 22, 23, 22, 23, 22, 22, 23}},
		{"key update split, behind a ticket", Server, func(s *sealer) *sealer {
			both := append(message(4, filled(300)...), keyUpdate(0)...)
			s.shaken().data(10).record(Handshake, both[:len(both)-1]...).record(Handshake, both[len(both)-1:]...)
			return s.useNext().data(11)
		}, []int{10, 11}, []ContentType{22, 20, 22, 23, 22, 22, 23}},
		{"authentication after the handshake", Client, func(s *sealer) *sealer {
			s.shaken().data(10).record(Handshake, append(certificate, finished()...)...)
			return s.data(11)
		}, []int{10, 11}, []ContentType{22, 20, 22, 23, 22, 23}},
		{"padding", Server, func(s *sealer) *sealer {
			s.hello().useHandshake().padded(Handshake, 100, finished()...).useTraffic()
			return s.padded(ApplicationData, 3, filled(20)...).padded(ApplicationData, maxPlain, nil...).padded(Handshake, 2000, keyUpdate(0)...).useNext().data(1300)
		}, []int{20, 1300}, []ContentType{22, 22, 23, 23, 22, 23}},
		{"data that ends like padding", Server, func(s *sealer) *sealer {
			return s.shaken().record(ApplicationData, make([]byte, 50)...).data(1)
		}, nil, []ContentType{22, 20, 22, 23, 23}},
		{"early data offered and not sent", Client, func(s *sealer) *sealer {
			s.raw(Handshake, clientHelloMessage(extEarlyData)...).useHandshake().record(Handshake, finished()...)
			return s.useTraffic().data(10)
		}, []int{10}, []ContentType{22, 22, 23}},
		{"alert in the clear", Client, func(s *sealer) *sealer {
			return s.hello().raw(Alert, 2, 40)
		}, nil, []ContentType{22, 21}},
	} {
		for _, suite := range handshakes13 {
			s := tt.write(newSealer(t, tt.side, version13, suite))
			var want []byte
			for _, n := range tt.data {
				want = append(want, filled(n)...)
			}
			for _, piece := range []int{1 << 20, 1, 13, 1100} {
				got := read(s.mustReader(s.secrets()), s.out, piece, 0)
				if got.err != nil || got.left > 0 || !slices.Equal(got.kinds, tt.kinds) {
					t.Errorf("%s, suite %#04x, pieces of %d: kinds %v, error %v, %d left, want kinds %v", tt.name, suite, piece, got.kinds, got.err, got.left, tt.kinds)
				}
				if tt.data != nil && !bytes.Equal(got.data, want) {
					t.Errorf("%s, suite %#04x, pieces of %d: %d bytes of data, want %d", tt.name, suite, piece, len(got.data), len(want))
				}
			}
		}
	}
}

// What breaks the protocol ends the reader, with the error that says how.
func TestReader13Refuses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		side  Side
		write func(s *sealer) *sealer
		want  error
	}{
		{"early data", Client, func(s *sealer) *sealer {
			return s.raw(Handshake, clientHelloMessage(extEarlyData)...).use(filled(s.suite.hashSize)).data(50)
		}, ErrEarlyData},
		{"early data before a second hello", Client, func(s *sealer) *sealer {
			return s.raw(Handshake, clientHelloMessage(extSupportedVersions, extEarlyData)...).raw(ChangeCipherSpec, 1).use(filled(s.suite.hashSize)).data(50)
		}, ErrEarlyData},
		{"keys of another connection", Client, func(s *sealer) *sealer {
			return s.hello().use(filled(s.suite.hashSize)).data(50)
		}, ErrAuth},
		{"no Finished", Client, func(s *sealer) *sealer {
			return s.hello().useHandshake().record(Handshake, message(11)...).useTraffic().data(5)
		}, ErrAuth},
		{"key not updated", Server, func(s *sealer) *sealer { return s.shaken().record(Handshake, keyUpdate(0)...).data(5) }, ErrAuth},
		{"key updated early", Server, func(s *sealer) *sealer { return s.shaken().useNext().data(5) }, ErrAuth},
		{"record too short for a tag", Client, func(s *sealer) *sealer { return s.shaken().raw(ApplicationData, filled(15)...) }, ErrAuth},
		{"only padding", Server, func(s *sealer) *sealer { return s.shaken().inner(make([]byte, 20)) }, ErrRecord},
		{"nothing inside", Server, func(s *sealer) *sealer { return s.shaken().inner(nil) }, ErrRecord},
		{"unknown type inside", Server, func(s *sealer) *sealer { return s.shaken().record(24, 1, 2) }, ErrRecord},
		{"change cipher spec inside", Server, func(s *sealer) *sealer { return s.shaken().record(ChangeCipherSpec, 1) }, ErrRecord},
		{"change cipher spec inside, in the handshake", Server, func(s *sealer) *sealer { return s.hello().useHandshake().record(ChangeCipherSpec, 1) }, ErrRecord},
		{"change cipher spec late", Server, func(s *sealer) *sealer { return s.shaken().raw(ChangeCipherSpec, 1) }, ErrRecord},
		{"change cipher spec of 2", Server, func(s *sealer) *sealer { return s.hello().raw(ChangeCipherSpec, 2) }, ErrRecord},
		{"too much inside", Server, func(s *sealer) *sealer { return s.shaken().data(maxPlain + 1) }, ErrRecord},
		{"too much padding", Server, func(s *sealer) *sealer { return s.shaken().padded(ApplicationData, 1, filled(maxPlain)...) }, ErrRecord},
		{"too long", Server, func(s *sealer) *sealer { return s.shaken().raw(ApplicationData, filled(maxBody13+1)...) }, ErrRecord},
		{"too much in the clear", Server, func(s *sealer) *sealer {
			return s.raw(Handshake, serverHelloMessage(version13, 0x1301, [32]byte{})...).raw(Handshake, filled(maxPlain+1)...)
		}, ErrRecord},
		{"unknown type", Server, func(s *sealer) *sealer { return s.raw(24, 1) }, ErrRecord},
		{"SSL 2", Client, func(s *sealer) *sealer { s.out = []byte{22, 2, 0, 0, 1, 1}; return s }, ErrRecord},
		{"HTTP", Client, func(s *sealer) *sealer { s.out = []byte("GET / HTTP/1.1\r\n\r\n"); return s }, ErrRecord},
		{"message of the other side", Client, func(s *sealer) *sealer { return s.raw(Handshake, serverHelloMessage(version13, 0x1301, [32]byte{})...) }, ErrRecord},
		{"hello of the other side, twice", Server, func(s *sealer) *sealer { return s.hello().raw(Handshake, clientHelloMessage()...) }, ErrRecord},
		{"certificate in the clear", Server, func(s *sealer) *sealer { return s.hello().raw(Handshake, message(11)...) }, ErrRecord},
		{"hello that does not end", Client, func(s *sealer) *sealer {
			return s.raw(Handshake, clientHelloMessage()[:20]...).useHandshake().record(Handshake, finished()...)
		}, ErrRecord},
		{"hello without end", Client, func(s *sealer) *sealer { return s.raw(Handshake, typeClientHello, 1, 0, 1) }, ErrRecord},
		{"hello that is malformed", Client, func(s *sealer) *sealer { return s.raw(Handshake, message(typeClientHello, filled(40)...)...) }, ErrRecord},
		{"hello under keys", Client, func(s *sealer) *sealer { return s.hello().useHandshake().record(Handshake, clientHelloMessage()...) }, ErrRecord},
		{"in the clear after keys", Client, func(s *sealer) *sealer {
			return s.hello().useHandshake().record(Handshake, message(11)...).raw(Handshake, finished()...)
		}, ErrRecord},
		{"alert in the clear after keys", Client, func(s *sealer) *sealer { return s.shaken().raw(Alert, 2, 40) }, ErrRecord},
		{"alert of three bytes", Client, func(s *sealer) *sealer { return s.shaken().record(Alert, 2, 40, 1) }, ErrRecord},
		{"empty handshake record", Client, func(s *sealer) *sealer { return s.shaken().record(Handshake) }, ErrRecord},
		{"data under keys of the handshake", Client, func(s *sealer) *sealer { return s.hello().useHandshake().data(5) }, ErrRecord},
		{"data after Finished", Client, func(s *sealer) *sealer { return s.hello().useHandshake().record(Handshake, append(finished(), 4)...) }, ErrRecord},
		{"key update in the handshake", Client, func(s *sealer) *sealer { return s.hello().useHandshake().record(Handshake, keyUpdate(0)...) }, ErrRecord},
		{"key update and more", Client, func(s *sealer) *sealer { return s.shaken().record(Handshake, append(keyUpdate(0), 4)...) }, ErrRecord},
		{"key update of 2", Client, func(s *sealer) *sealer { return s.shaken().record(Handshake, keyUpdate(2)...) }, ErrRecord},
		{"key update of two bytes", Client, func(s *sealer) *sealer { return s.shaken().record(Handshake, message(typeKeyUpdate, 0, 0)...) }, ErrRecord},
		{"message interrupted by data", Client, func(s *sealer) *sealer { return s.shaken().record(Handshake, 4, 0).data(5) }, ErrRecord},
		{"message interrupted by an alert", Client, func(s *sealer) *sealer { return s.shaken().record(Handshake, 4, 0).record(Alert, 1, 0) }, ErrRecord},
	} {
		s := tt.write(newSealer(t, tt.side, version13, 0x1301))
		refuses(t, tt.name, s, s.secrets(), tt.want)
	}
}

// refuses checks the error, and that it stays.
func refuses(t *testing.T, name string, s *sealer, secrets *Secrets, want error) {
	t.Helper()
	for _, piece := range []int{1 << 20, 1} {
		r := s.mustReader(secrets)
		got := read(r, s.out, piece, 0)
		if !errors.Is(got.err, want) {
			t.Errorf("%s, pieces of %d: error %v, want %v", name, piece, got.err, want)
			continue
		}
		if !errors.Is(r.Err(), want) {
			t.Errorf("%s: Err = %v, want %v", name, r.Err(), want)
		}
		good := newSealer(t, s.side, s.params.Version, s.params.Suite).hello().out
		if n, _, plain, err := r.Next(good); n != 0 || plain != nil || !errors.Is(err, want) {
			t.Errorf("%s: after the error Next = %d, %v", name, n, err)
		}
		if n, plain := r.Skim(good, 1<<20); n != 0 || plain != 0 || r.Skimming() {
			t.Errorf("%s: after the error Skim = %d, %d", name, n, plain)
		}
	}
}

// Without the secret of the handshake its records are Unread, within bounds,
// and application data is found by trial.
func TestReaderWithoutHandshakeKeys(t *testing.T) {
	flight := func(s *sealer) *sealer {
		s.hello().raw(ChangeCipherSpec, 1).useHandshake()
		return s.record(Handshake, filled(900)...).record(Handshake, filled(500)...)
	}
	for _, suite := range handshakes13 {
		s := flight(newSealer(t, Server, version13, suite)).useTraffic().data(10).record(Handshake, keyUpdate(1)...).useNext().data(11)
		secrets := &Secrets{ServerTraffic: s.secrets().ServerTraffic}
		want := []ContentType{22, 20, Unread, Unread, 23, 22, 23}
		for _, piece := range []int{1 << 20, 1} {
			got := read(s.mustReader(secrets), s.out, piece, 1<<20)
			if got.err != nil || !slices.Equal(got.kinds, want) || !bytes.Equal(got.data, append(filled(10), filled(11)...)) {
				t.Errorf("suite %#04x: kinds %v, error %v, want %v", suite, got.kinds, got.err, want)
			}
		}
	}
	for _, tt := range []struct {
		name  string
		side  Side
		write func(s *sealer) *sealer
		want  error
	}{
		{"early data offered", Client, func(s *sealer) *sealer {
			return s.raw(Handshake, clientHelloMessage(extEarlyData)...).useHandshake().record(Handshake, finished()...)
		}, ErrEarlyData},
		{"a flight without end", Server, func(s *sealer) *sealer {
			s.hello().useHandshake()
			for range maxUnread / maxPlain {
				s.record(Handshake, filled(maxPlain)...)
			}
			return s
		}, ErrAuth},
		{"change cipher spec after data", Server, func(s *sealer) *sealer { return flight(s).useTraffic().data(5).raw(ChangeCipherSpec, 1) }, ErrRecord},
		{"a record lost", Server, func(s *sealer) *sealer { s = flight(s).useTraffic().data(5); s.keys.seq++; return s.data(6) }, ErrAuth},
	} {
		s := tt.write(newSealer(t, tt.side, version13, 0x1301))
		all := s.secrets()
		refuses(t, tt.name, s, &Secrets{ClientTraffic: all.ClientTraffic, ServerTraffic: all.ServerTraffic}, tt.want)
	}
}

// The same for TLS 1.2.
func TestReader12(t *testing.T) {
	for _, suite := range []uint16{0xc02f, 0xc030, 0xcca8} {
		for _, side := range []Side{Client, Server} {
			s := newSealer(t, side, version12, suite).shaken12()
			s.data(10).data(0).record(Handshake, message(0)...).data(maxPlain).record(Alert, 1, 0)
			want := []ContentType{22, 20, 22, 23, 23, 22, 23, 21}
			for _, piece := range []int{1 << 20, 1, 13} {
				got := read(s.mustReader(s.secrets()), s.out, piece, 0)
				if got.err != nil || got.left > 0 || !slices.Equal(got.kinds, want) || !bytes.Equal(got.data, append(filled(10), filled(maxPlain)...)) {
					t.Errorf("suite %#04x: kinds %v, error %v, %d left, want %v", suite, got.kinds, got.err, got.left, want)
				}
			}
		}
	}
	for _, tt := range []struct {
		name  string
		side  Side
		write func(s *sealer) *sealer
		want  error
	}{
		{"renegotiation of the client", Client, func(s *sealer) *sealer { return s.shaken12().record(Handshake, clientHelloMessage()...) }, ErrUnsupported},
		{"renegotiation of the server", Server, func(s *sealer) *sealer {
			return s.shaken12().record(Handshake, serverHelloMessage(version12, 0xc02f, [32]byte{})...)
		}, ErrUnsupported},
		{"second change cipher spec", Client, func(s *sealer) *sealer { return s.shaken12().record(ChangeCipherSpec, 1) }, ErrRecord},
		{"change cipher spec in a message", Client, func(s *sealer) *sealer { return s.raw(Handshake, clientHelloMessage()[:9]...).raw(ChangeCipherSpec, 1) }, ErrRecord},
		{"data in the clear", Client, func(s *sealer) *sealer { return s.hello().data(5) }, ErrRecord},
		{"data before Finished", Client, func(s *sealer) *sealer { return s.hello().raw(ChangeCipherSpec, 1).use12().data(5) }, ErrRecord},
		{"Finished and more", Client, func(s *sealer) *sealer {
			return s.hello().raw(ChangeCipherSpec, 1).use12().record(Handshake, append(finished(), 1)...)
		}, ErrRecord},
		{"in the clear after keys", Client, func(s *sealer) *sealer { return s.shaken12().raw(ApplicationData, filled(100)...) }, ErrAuth},
		{"record too short for a tag", Client, func(s *sealer) *sealer { return s.shaken12().raw(ApplicationData, filled(23)...) }, ErrAuth},
		{"too much inside", Client, func(s *sealer) *sealer { return s.shaken12().data(maxPlain + 1) }, ErrRecord},
		{"too long", Client, func(s *sealer) *sealer { return s.shaken12().raw(ApplicationData, filled(maxBody12+1)...) }, ErrRecord},
		{"a record lost", Client, func(s *sealer) *sealer { s.shaken12(); s.keys.seq++; return s.data(6) }, ErrAuth},
	} {
		s := tt.write(newSealer(t, tt.side, version12, 0xc02f))
		refuses(t, tt.name, s, s.secrets(), tt.want)
	}
}

// A bit that was changed anywhere in protected records is noticed, and nothing
// of such a record is shown.
func TestChangedBits(t *testing.T) {
	for _, tt := range []struct {
		name  string
		start *sealer
	}{
		{"1.3", newSealer(t, Client, version13, 0x1301).shaken()},
		{"1.3 ChaCha20", newSealer(t, Client, version13, 0x1303).shaken()},
		{"1.2", newSealer(t, Client, version12, 0xc02f).shaken12()},
		{"1.2 ChaCha20", newSealer(t, Client, version12, 0xcca8).shaken12()},
	} {
		s := tt.start
		before := len(s.out)
		s.data(40)
		for i := before; i < len(s.out); i++ {
			for bit := range 8 {
				wire := bytes.Clone(s.out)
				wire[i] ^= 1 << bit
				got := read(s.mustReader(s.secrets()), wire, 1<<20, 0)
				// A length that grew waits for more.
				if len(got.data) > 0 || got.err == nil && got.left == 0 {
					t.Fatalf("%s: byte %d, bit %d: %d bytes of data, error %v", tt.name, i-before, bit, len(got.data), got.err)
				}
			}
		}
	}
}

func TestNewReaderRefuses(t *testing.T) {
	all := testSecrets(32)
	for _, tt := range []struct {
		name    string
		params  Params
		secrets *Secrets
		want    error
	}{
		{"no secrets", Params{Version: version13, Suite: 0x1301}, nil, ErrNoKeys},
		{"those of TLS 1.2", Params{Version: version13, Suite: 0x1301}, &Secrets{Master: all.Master}, ErrNoKeys},
		{"those of TLS 1.3", Params{Version: version12, Suite: 0xc02f}, &Secrets{ClientTraffic: all.ClientTraffic, ServerTraffic: all.ServerTraffic}, ErrNoKeys},
		{"those of the server", Params{Version: version13, Suite: 0x1301}, &Secrets{ServerTraffic: all.ServerTraffic}, ErrNoKeys},
		{"length of another hash", Params{Version: version13, Suite: 0x1302}, all, ErrNoKeys},
		{"handshake secret of another hash", Params{Version: version13, Suite: 0x1301}, &Secrets{ClientHandshake: all.Master, ClientTraffic: all.ClientTraffic}, ErrNoKeys},
		{"short master secret", Params{Version: version12, Suite: 0xc02f}, &Secrets{Master: all.Master[1:]}, ErrNoKeys},
		{"CCM", Params{Version: version13, Suite: 0x1304}, all, ErrUnsupported},
		{"CBC", Params{Version: version12, Suite: 0xc013}, all, ErrUnsupported},
		{"suite of TLS 1.3 in TLS 1.2", Params{Version: version12, Suite: 0x1301}, all, ErrUnsupported},
		{"suite of TLS 1.2 in TLS 1.3", Params{Version: version13, Suite: 0xc02f}, all, ErrUnsupported},
		{"TLS 1.1", Params{Version: 0x0302, Suite: 0xc02f}, all, ErrUnsupported},
		{"a draft", Params{Version: 0x7f1c, Suite: 0x1301}, all, ErrUnsupported},
		{"compression", Params{Version: version12, Suite: 0xc02f, Compressed: true}, all, ErrUnsupported},
	} {
		if r, err := NewReader(Client, &tt.params, tt.secrets); r != nil || !errors.Is(err, tt.want) {
			t.Errorf("%s: NewReader = %v, want %v", tt.name, err, tt.want)
		}
	}
}

func TestComplete(t *testing.T) {
	all := testSecrets(32)
	for _, tt := range []struct {
		name    string
		secrets *Secrets
		want    bool
	}{
		{"none", nil, false},
		{"empty", &Secrets{}, false},
		{"master", &Secrets{Master: all.Master}, true},
		{"traffic", &Secrets{ClientTraffic: all.ClientTraffic, ServerTraffic: all.ServerTraffic}, true},
		{"client", &Secrets{ClientTraffic: all.ClientTraffic}, false},
		{"server", &Secrets{ServerTraffic: all.ServerTraffic}, false},
		{"handshake", &Secrets{ClientHandshake: all.ClientHandshake, ServerHandshake: all.ServerHandshake}, false},
	} {
		if got := tt.secrets.Complete(); got != tt.want {
			t.Errorf("%s: Complete = %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A reader keeps nothing of the secrets that it was made with.
func TestSecretsAreCopied(t *testing.T) {
	s := newSealer(t, Client, version13, 0x1301).shaken().record(Handshake, keyUpdate(0)...).useNext().data(10)
	secrets := s.secrets()
	r := s.mustReader(secrets)
	for _, b := range [][]byte{secrets.ClientHandshake, secrets.ClientTraffic} {
		clear(b)
	}
	if got := read(r, s.out, 1<<20, 0); got.err != nil || !bytes.Equal(got.data, filled(10)) {
		t.Errorf("error %v, %d bytes of data", got.err, len(got.data))
	}
}

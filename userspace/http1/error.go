// SPDX-License-Identifier: Apache-2.0

package http1

// Error says why a message is refused. All values are made once, at start, and
// compared by pointer or by Reason; returning one allocates nothing.
type Error struct {
	// Reason is a short text out of the closed set of Reasons, fit for a
	// metric label and for the details of Proxy-Status.
	Reason string
	// Status is what to answer. It is 502 for every error in a response.
	Status int
}

// Error returns the reason.
func (e *Error) Error() string { return "http/1: " + e.Reason }

// reason names an entry of reasons.
type reason uint8

const (
	headTooLarge reason = iota
	tooManyFields
	malformedRequestLine
	invalidMethod
	invalidTarget
	unsupportedVersion
	bareLF
	bareCR
	obsFold
	invalidFieldName
	spaceBeforeColon
	invalidFieldValue
	missingHost
	repeatedHost
	invalidHost
	lengthAndCoding
	repeatedLength
	invalidLength
	unsupportedCoding
	repeatedCoding
	codingInHTTP10
	contentInConnect
	invalidChunkSize
	invalidChunkExtension
	chunkExtensionTooLong
	invalidChunkEnd
	trailersTooLarge
	malformedStatusLine
	differingLengths
	unexpectedUpgrade
	numReasons
)

var reasons = [numReasons]Error{
	headTooLarge:          {"head too large", 431},
	tooManyFields:         {"too many fields", 431},
	malformedRequestLine:  {"malformed request line", 400},
	invalidMethod:         {"invalid method", 400},
	invalidTarget:         {"invalid target", 400},
	unsupportedVersion:    {"unsupported version", 505},
	bareLF:                {"bare lf", 400},
	bareCR:                {"bare cr", 400},
	obsFold:               {"folded field", 400},
	invalidFieldName:      {"invalid field name", 400},
	spaceBeforeColon:      {"space before colon", 400},
	invalidFieldValue:     {"invalid field value", 400},
	missingHost:           {"missing host", 400},
	repeatedHost:          {"repeated host", 400},
	invalidHost:           {"invalid host", 400},
	lengthAndCoding:       {"content-length and transfer-encoding", 400},
	repeatedLength:        {"repeated content-length", 400},
	invalidLength:         {"invalid content-length", 400},
	unsupportedCoding:     {"unsupported transfer-encoding", 501},
	repeatedCoding:        {"repeated transfer-encoding", 400},
	codingInHTTP10:        {"transfer-encoding in http/1.0", 400},
	contentInConnect:      {"content in connect", 400},
	invalidChunkSize:      {"invalid chunk size", 400},
	invalidChunkExtension: {"invalid chunk extension", 400},
	chunkExtensionTooLong: {"chunk extension too long", 400},
	invalidChunkEnd:       {"invalid chunk end", 400},
	trailersTooLarge:      {"trailers too large", 431},
	malformedStatusLine:   {"malformed status line", 502},
	differingLengths:      {"differing content-lengths", 502},
	unexpectedUpgrade:     {"unexpected upgrade", 502},
}

// responseReasons are reasons with the status of a bad gateway.
var responseReasons = func() (out [numReasons]Error) {
	for i, e := range reasons {
		out[i] = Error{e.Reason, 502}
	}
	return out
}()

// inRequest and inResponse give the error to a reason.
func inRequest(r reason) *Error  { return &reasons[r] }
func inResponse(r reason) *Error { return &responseReasons[r] }

// ErrInvalidHost is for callers that judge the authority of a request more
// closely than ParseRequest did, and refuse it.
var ErrInvalidHost = &reasons[invalidHost]

// Reasons returns every Reason that an Error may have, so that metrics can
// start at zero.
func Reasons() []string {
	out := make([]string, numReasons)
	for i := range reasons {
		out[i] = reasons[i].Reason
	}
	return out
}

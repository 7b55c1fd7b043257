// SPDX-License-Identifier: Apache-2.0

package keylog

import "container/list"

// Writer is one source of keys. It takes a key log as it is written, in pieces
// of any size, so it can also be the KeyLogWriter of crypto/tls. It is safe
// for concurrent use; who writes pieces of lines must be alone.
type Writer struct {
	store    *Store
	parser   Parser    // under store.mu, as everything here
	sessions list.List // of *session, the oldest first
	count    uint64    // of sessions ever
	closed   bool
}

// WriterCounts says what one source has brought.
type WriterCounts struct {
	LineCounts
	Sessions uint64 // that had their first line from it
}

// Writer makes a source of keys for the store. The caller closes it.
func (s *Store) Writer() *Writer {
	w := &Writer{store: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writers[w] = true
	return w
}

// Write reads a piece of the log. It keeps nothing of b, takes all of it and
// never fails; after Close it does nothing.
func (w *Writer) Write(b []byte) (int, error) {
	for _, waiter := range w.take(b) {
		waiter.tell()
	}
	return len(b), nil
}

func (w *Writer) take(b []byte) (told []*waiter) {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	if w.closed {
		return nil
	}
	w.parser.Feed(b, func(l *Line) { told = append(told, w.store.take(w, l)...) })
	return told
}

// Close ends the source. What it brought is remembered for its time.
func (w *Writer) Close() error {
	s := w.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	w.parser.forget()
	s.gone.add(w.parser.Counts())
	w.parser = Parser{}
	s.retire(w)
	return nil
}

// Counts says what the source has brought so far; zero after Close.
func (w *Writer) Counts() WriterCounts {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	return WriterCounts{w.parser.Counts(), w.count}
}

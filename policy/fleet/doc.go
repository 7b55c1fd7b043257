// SPDX-License-Identifier: Apache-2.0

// Package fleet lets many hosts hold one budget together, through a store that
// they share.
//
// A Lane is one host's part in one lane of the policy: a state machine that
// reads no clock, starts nothing and waits for nothing. It says which call to
// the store is due (Next), is told what became of it (Answered, Failed), and
// grants units (Take). What the store has to do is in the documentation of
// Store; package model is a store in memory that does it.
//
// # How units come and go
//
// The store keeps one GCRA for all hosts and grants units with a slot each: the
// instant from which on the unit may go, which may lie ahead. The slots of a
// lane conform to its limit, by the store's clock alone: no more than
// burst + rate·τ of them lie in any τ. A host lets a unit go no earlier than
// its slot, since it counts from the receipt of the answer, and no later than
// the unit's life after it, since it counts that from the sending of the call.
// All that can go wrong in the time between, it does on the strict side: what
// is lost on the way, or comes too late, is not sent. How far the sends of all
// hosts can exceed burst + rate·τ therefore follows from the life of units or
// from how many a host may hold: see Bound.
//
// # Without the store
//
// A call is given up after a tenth of a second at most. After three failures in
// a row the store counts as lost; what is held is spent, and then the Loss of
// the budget says what goes. One host asks now and then whether the store is
// back, and when it is, hosts return to it spread over some time.
//
// Each host keeps its own copy of the lane's cooldown and slow-down, which is
// in force at once and for as long as it says, store or not. A store that knows
// less, since it began anew or a replica took over, is told.
package fleet

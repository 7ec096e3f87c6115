//! The mistakes that can be planted in the models.

/// The protocol as it is, or with one mistake. Each mistake breaks the property that is named with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Variant {
    /// The protocol as it is: breaks nothing.
    Correct,
    /// A renewal writes its lease down without looking whose lease is there (I1).
    RenewsWithoutComparing,
    /// A release ends the lease that is held, whosesoever it is (I1).
    ReleasesWithoutComparing,
    /// The client measures its lease from the arrival of the answer, not from its request (I1).
    MeasuresFromTheAnswer,
    /// Tokens are counted, and do not follow the clock: a store that has lost its memory starts again (I2).
    CountsTokens,
    /// The last number is not kept: after the store's clock was set back, tokens go back (I2).
    KeepsNoFence,
    /// Places in the queue do not end when their requests are no longer repeated (I5).
    IgnoresLiveness,
    /// A grant to a waiter is not pushed, and waiting requests are not repeated (I5).
    NeitherPushesNorRepeats,
    /// A release that was not answered is not repeated (I5).
    GivesUpReleases,
    /// A lease is passed on within the client as if it began anew (I1).
    PassesOnPastTheLease,
    /// A pushed grant is believed whatever ticket it names (I1).
    BelievesLateGrants,
    /// A request takes a lock that has become free by itself, although others wait for it (I7).
    OvertakesTheQueue,
    /// A Redlock request counts votes of an earlier attempt, after which the nodes were told to forget it (I1).
    CountsEarlierVotes,
    /// A Redlock renewal counts the nodes that had lost the lease and receive it again (I1).
    CountsRestoredNodes,
    /// The greatest token of a Redlock majority is not written back before it is used (I2).
    KeepsTokensToItself,
}

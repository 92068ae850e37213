//! Claim, extend, outcome: what a consumer does over HTTP. The rules are `process`'s, behind [`PullApi`]; here are the
//! shapes, the scope and the answers.

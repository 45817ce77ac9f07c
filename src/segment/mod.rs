//! The shared memory of one student: a header, hot words, seats, cells and slots. Payload bytes live in a medium.
//!
//! `layout` says where things lie; `cell`, `slot`, `bell` and `seat` are the algorithms over atomic words, written so that a model checker can build
//! them in a box (`tests/model` does); `payload` is a slot's bytes; `region` creates, opens and checks a segment; `group` is the page that the students of one job share.

pub mod bell;
pub mod cell;
pub mod doorbell;
pub mod group;
pub mod layout;
pub mod payload;
pub mod plain;
pub mod region;
pub mod ring;
pub mod seat;
pub mod slot;
mod sync;

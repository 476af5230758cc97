// SPDX-License-Identifier: Apache-2.0
//! Wire: the bytes between clients and servers of live namespaces. Layout: docs/format/live.md.

mod attributes;
mod frame;
mod hello;
mod request;
mod seat_move;
mod seat_path;
mod verb;

pub use self::attributes::{LiveAttributes, put_attributes, take_attributes};
pub use self::frame::{
    FRAME_BYTES_MAX, FRAME_HEADER_BYTES, FrameFlags, FrameHeader, finish_frame, split_frame,
    start_frame,
};
pub use self::hello::{
    CONNECTION_NONCE_BYTES, ClientHello, GREETING_BYTES_MAX, HelloMethod, ServerWelcome,
    decode_identity, encode_identity,
};
pub use self::request::{
    ANSWER_TEXT_BYTES_MAX, AttributeRequest, CHANGE_ITEMS_MAX, MAKE_OPENS, NAME_BYTES_MAX,
    PATH_BYTES_MAX, RangeChange, SPREAD_DEVICE, TRANSFER_BYTES_MAX, WriteMode, put_status,
    take_status,
};
pub use self::seat_move::{MoveRequest, MoveTarget, NamingOutcome, SeatFileNaming};
pub use self::seat_path::SeatPath;
pub use self::verb::Verb;

//! Any bytes from a socket, in two parts: requests or an error, never a panic, and the split changes nothing.
#![no_main]

use bytes::BufMut;
use libfuzzer_sys::fuzz_target;
use rockdove_mongo::codec::{Decoder, FrameError};

fn requests(decoder: &mut Decoder, seen: &mut Vec<(i32, bool)>) -> Result<(), FrameError> {
    while let Some(request) = decoder.next_request()? {
        seen.push((request.id, request.body.is_ok()));
    }
    Ok(())
}

fn read(parts: &[&[u8]]) -> (Vec<(i32, bool)>, bool) {
    let (mut decoder, mut seen) = (Decoder::new(), Vec::new());
    for part in parts {
        decoder.room().put_slice(part);
        if requests(&mut decoder, &mut seen).is_err() {
            return (seen, true);
        }
    }
    (seen, false)
}

fuzz_target!(|data: &[u8]| {
    let Some((&at, data)) = data.split_first() else { return };
    let at = usize::from(at).min(data.len());
    assert_eq!(read(&[data]), read(&[&data[..at], &data[at..]]));
});

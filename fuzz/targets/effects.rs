//! A batch of the log with any bytes: effects or an error, and what was read writes the same again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rockdove_engine::effects::{BatchDecoder, BatchEncoder};

fuzz_target!(|data: &[u8]| {
    let Ok(decoder) = BatchDecoder::new(data.to_vec().into()) else { return };
    let wall_ms = decoder.wall_ms;
    let read: Result<Vec<_>, _> = decoder.collect();
    let Ok(read) = read else { return };
    let Some((first, _)) = read.first() else { return };
    if first.bits().checked_add(read.len() as u64).is_none() {
        return; // no clock gets there
    }
    let mut encoder = BatchEncoder::new(*first, wall_ms);
    for (_, effect) in &read {
        encoder.push(effect);
    }
    let written = encoder.parts().concat();
    let again: Vec<_> = BatchDecoder::new(written.into())
        .expect("a header")
        .map(|effect| effect.expect("an effect"))
        .collect();
    assert_eq!(format!("{again:?}"), format!("{read:?}"));
});

//! What a student tells workers of its memory: the text that travels through the door as the medium's `buf_name`.

use super::driver::{IpcHandle, uuid_label};
use crate::base::{Error, Result, Status};
use serde::{Deserialize, Serialize};

/// One allocation, as another process finds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// The device's UUID as 32 hexadecimal digits: its number differs between processes.
    uuid: String,
    /// The handle of `cuIpcGetMemHandle`, 128 hexadecimal digits.
    handle: String,
    /// Names the allocation, so that a worker in the student's own process finds it.
    pub id: String,
    /// Its size.
    pub bytes: u64,
}

impl Offer {
    pub fn new(uuid: &[u8; 16], handle: &IpcHandle, id: u128, bytes: usize) -> Offer {
        Offer { uuid: hex(uuid), handle: hex(&handle.0), id: format!("{id:032x}"), bytes: bytes as u64 }
    }

    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("texts and a number are always JSON")
    }

    /// Reads and checks one.
    pub fn parse(text: &str) -> Result<Offer> {
        let wrong = |why: String| Error::new(Status::Corrupt, format!("the student's description of its cuda medium: {why}"));
        let offer: Offer = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
        if unhex::<16>(&offer.uuid).is_none() || unhex::<64>(&offer.handle).is_none() {
            return Err(wrong("uuid and handle must have 32 and 128 hexadecimal digits".into()));
        }
        Ok(offer)
    }

    pub fn uuid(&self) -> [u8; 16] {
        unhex(&self.uuid).expect("checked by parse")
    }

    pub fn handle(&self) -> IpcHandle {
        IpcHandle(unhex(&self.handle).expect("checked by parse"))
    }

    /// The device's name, for people.
    pub fn label(&self) -> String {
        uuid_label(&self.uuid())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.len() == 2 * N && text.bytes().all(|b| b.is_ascii_hexdigit());
    let byte = |i: usize| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok();
    let mut out = [0; N];
    for (i, place) in out.iter_mut().enumerate() {
        *place = if digits { byte(i)? } else { return None };
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_comes_through_as_it_was_and_a_damaged_one_is_refused() {
        let offer = Offer::new(&[0xAB; 16], &IpcHandle([7; 64]), 5, 4096);
        let parsed = Offer::parse(&offer.to_text()).unwrap();
        assert!(parsed == offer && parsed.uuid() == [0xAB; 16] && parsed.handle().0 == [7; 64]);
        assert_eq!(parsed.label(), "GPU-abababab-abab-abab-abab-abababababab");
        for text in
            ["", "{}", &offer.to_text().replace("abab", "abax"), &offer.to_text().replace("07", "0"), &offer.to_text().replace("}", ",\"more\":1}")]
        {
            assert_eq!(Offer::parse(text).unwrap_err().status, Status::Corrupt, "{text}");
        }
    }
}

//! A printable character for each byte.
//!
//! The vocabulary is kept as text, so that a saved tokenizer can be read by eye: a byte that is
//! printable Latin-1 stands for itself, the others take the characters from U+0100 on, in order
//! (the table of GPT-2; Radford et al. 2019). A space is `Ġ`.

/// The character that stands for `byte`.
pub(super) fn char_of_byte(byte: u8) -> char {
    let code = match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u32::from(byte),
        0x00..=0x20 => 0x100 + u32::from(byte),
        0x7f..=0xa0 => 0x100 + 0x21 + u32::from(byte - 0x7f),
        0xad => 0x100 + 0x21 + 0x22,
    };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte that `character` stands for, if it is of the alphabet.
pub(super) fn byte_of_char(character: char) -> Option<u8> {
    let code = u32::from(character);
    let byte = match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// `text` with one character for each of its bytes.
pub(super) fn to_alphabet(text: &str) -> String {
    text.bytes().map(char_of_byte).collect()
}

/// The bytes that `token` stands for, or `None` if it holds a foreign character.
pub(super) fn to_bytes(token: &str) -> Option<Vec<u8>> {
    token.chars().map(byte_of_char).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_is_a_bijection_and_sorted_like_gpt2() {
        let all: std::collections::BTreeSet<char> = (0..=255).map(char_of_byte).collect();
        assert_eq!(all.len(), 256);
        for byte in 0..=255 {
            assert_eq!(byte_of_char(char_of_byte(byte)), Some(byte));
        }
        assert_eq!(char_of_byte(b' '), 'Ġ');
        assert_eq!(char_of_byte(b'\n'), 'Ċ');
        assert_eq!(char_of_byte(0xad), 'Ń');
        assert_eq!(byte_of_char('中'), None);
        assert_eq!(to_bytes("aĠ").unwrap(), b"a ");
    }
}

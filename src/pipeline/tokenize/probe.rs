//! Whether the fast engine may be trusted with a file: both engines encode the same texts.
//!
//! The engines know different versions of Unicode, so they may differ on characters that one of them does not know. All
//! code points of the planes in use are tried one by one, next to letters, digits, white space and combining marks; those on
//! which the engines differ are *doubtful*, and a text that holds one is left to the reference. On texts without a doubtful
//! character one differing id is enough for the fast engine not to be used at all: the vocabulary's own strings, a fixed
//! text in many scripts, and random mixtures of what tends to go wrong.
//!
//! The result depends on the file and on the versions of the engines only, so it is kept.

use super::doubt::Doubtful;
use super::engines::{Ids, Scratch};
use crate::base::mix;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Changes whenever the verdict on the same file might.
const VERSION: &str = "tokenizers 1.0.0-rc.3 against 0.23.2, probe 4";

/// What the two engines made of the same texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The same, for texts without a doubtful character.
    Agree(Doubtful),
    /// Why the fast engine is not used.
    Differ(String),
}

/// Where the verdict on a file is kept.
pub(super) fn verdict_path(cache: &Path, file_hash: u64) -> PathBuf {
    cache.join("tokenizers").join(format!("{file_hash:016x}-{:016x}.verdict", crate::base::fnv1a(VERSION.as_bytes())))
}

/// The verdict that is kept, if there is one.
pub(super) fn recall(path: &Path) -> Option<Verdict> {
    parse(&std::fs::read_to_string(path).ok()?)
}

/// The verdict that is kept, or else that `find` finds, which then is. Of several processes that need it at once, one works
/// and the others wait. Where nothing can be kept, each finds it anew.
pub(super) fn settle(path: &Path, find: impl FnOnce() -> Verdict) -> Verdict {
    let locked = (|| {
        std::fs::create_dir_all(path.parent().expect("it has a name"))?;
        let mut file = File::options().create(true).truncate(false).read(true).write(true).open(path)?;
        file.lock()?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        Ok::<_, io::Error>((file, text))
    })();
    let hint = "each start compares the engines anew, which takes some seconds; name a directory that can be written with cache_dir or LANEWAY_CACHE";
    let unkept = |e: io::Error| tracing::warn!("the verdict on a tokenizer cannot be kept at {}: {e}; {hint}", path.display());
    let (mut file, text) = match locked {
        Ok(locked) => locked,
        Err(e) => {
            unkept(e);
            return find();
        }
    };
    if let Some(verdict) = parse(&text) {
        return verdict;
    }
    let verdict = find();
    let text = match &verdict {
        Verdict::Agree(doubtful) => format!("agree but for:{doubtful}\n"),
        Verdict::Differ(why) => format!("differ: {}\n", why.replace('\n', " ")),
    };
    // Written in place, under the lock: what is cut off lacks the final line end and is not believed.
    let written = file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0))).and_then(|_| file.write_all(text.as_bytes()));
    written.unwrap_or_else(unkept);
    verdict
}

fn parse(text: &str) -> Option<Verdict> {
    let text = text.strip_suffix('\n')?;
    match text.strip_prefix("agree but for:") {
        Some(ranges) => Doubtful::parse(ranges).map(Verdict::Agree),
        None => text.strip_prefix("differ: ").map(|why| Verdict::Differ(why.to_string())),
    }
}

/// Lets both engines encode all texts. Both are left not parsing special tokens.
pub(super) fn compare(fast: &mut dyn Ids, slow: &mut dyn Ids, vocab_size: u32, specials: &[String]) -> Verdict {
    let doubtful = Doubtful::find(&*fast, &*slow);
    if (0..128).any(|c| doubtful.contains(c)) {
        let shown: Vec<String> = (0u8..128).filter(|c| doubtful.contains(u32::from(*c))).map(|c| format!("{:?}", char::from(c))).collect();
        return Verdict::Differ(format!("the engines differ on {}", shown.join(" ")));
    }
    let mut pair = Pair::default();
    let mut trial = |text: &str, fast: &dyn Ids, slow: &dyn Ids| if doubtful.in_text(text) { None } else { pair.differ(text, fast, slow) };
    // What special tokens are found in text, by either setting; the rest does not depend on it.
    for on in [true, false] {
        fast.parse_special(on);
        slow.parse_special(on);
        let texts = specials.iter().flat_map(|s| [s.clone(), format!("a {s} b"), format!("x{s}{s}y\n{s}"), format!("{} {s}", s.to_uppercase())]);
        for text in texts.chain((0..500).map(|i| mixture(i, specials))) {
            if let Some(why) = trial(&text, fast, slow) {
                return Verdict::Differ(why);
            }
        }
    }
    let words: Vec<String> = (0..vocab_size).filter_map(|id| slow.decode(&[id]).ok()).collect();
    let mixtures = (0..MIXTURES).map(|i| mixture(i, &words));
    for text in words.iter().cloned().chain(SCRIPTS.iter().map(|s| s.to_string())).chain(mixtures) {
        if let Some(why) = trial(&text, fast, slow) {
            return Verdict::Differ(why);
        }
    }
    Verdict::Agree(doubtful)
}

/// Random mixtures tried.
const MIXTURES: u64 = 10_000;

/// Both engines' ids of one text; keeps its buffers.
#[derive(Default)]
pub(super) struct Pair {
    scratch: Scratch,
    a: Vec<u32>,
    b: Vec<u32>,
}

impl Pair {
    /// Whether the engines agree on `text`. Both refusing it is agreement.
    pub fn agree(&mut self, text: &str, fast: &dyn Ids, slow: &dyn Ids) -> bool {
        self.encode(text, fast, slow).is_none()
    }

    /// The engines' answers on `text` if they differ.
    fn encode(&mut self, text: &str, fast: &dyn Ids, slow: &dyn Ids) -> Option<[Result<(), String>; 2]> {
        self.a.clear();
        self.b.clear();
        let a = fast.encode(text, &mut self.scratch, &mut self.a);
        let b = slow.encode(text, &mut self.scratch, &mut self.b);
        let same = a.is_ok() == b.is_ok() && (a.is_err() || self.a == self.b);
        (!same).then_some([a, b])
    }

    /// How the engines differ on `text`, if they do.
    fn differ(&mut self, text: &str, fast: &dyn Ids, slow: &dyn Ids) -> Option<String> {
        let answers = self.encode(text, fast, slow)?;
        let shown: String = text.chars().take(60).collect();
        Some(match answers {
            [Err(e), _] => format!("the fast engine fails on {shown:?}: {e}"),
            [_, Err(e)] => format!("only the fast engine accepts {shown:?}: {e}"),
            _ => {
                let at = self.a.iter().zip(&self.b).position(|(a, b)| a != b).unwrap_or(self.a.len().min(self.b.len()));
                let id = |ids: &[u32]| ids.get(at).map_or("nothing".to_string(), u32::to_string);
                format!("the engines differ on {shown:?}: id {at} is {} and {}", id(&self.a), id(&self.b))
            }
        })
    }
}

/// Pieces of text that meet each other in random order.
fn mixture(i: u64, words: &[String]) -> String {
    let mut state = mix(i ^ 0x1A9E_11E5);
    let mut next = |n: usize| {
        state = mix(state.wrapping_add(1));
        (state % n as u64) as usize
    };
    let mut text = String::new();
    for _ in 0..2 + next(30) {
        match next(3) {
            0 if !words.is_empty() => text.push_str(&words[next(words.len())]),
            1 => text.push_str(PIECES[next(PIECES.len())]),
            _ => {
                let script = SCRIPTS[next(SCRIPTS.len())];
                let count = script.chars().count();
                text.extend(script.chars().skip(next(count)).take(1 + next(8)));
            }
        }
    }
    text
}

/// What tends to go wrong: white space of every kind, contractions, digits, marks that combine, characters that normalise
/// into several or none, direction marks, joiners, half-width and full-width forms, controls.
const PIECES: [&str; 64] = [
    " ",
    "  ",
    "   ",
    "    ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    " \n",
    "\n ",
    "\u{a0}",
    "\u{2003}",
    "\u{3000}",
    "\u{200b}",
    "\u{feff}",
    "\0",
    "\u{1}",
    "\u{7f}",
    "'s",
    "'t",
    "'re",
    "'LL",
    "\u{2019}s",
    "don't",
    "I'M",
    "0",
    "12",
    "345",
    "6789",
    "1,234.56",
    "\u{b2}",
    "\u{bd}",
    "\u{2167}",
    "\u{ff11}",
    "\u{662}",
    "!",
    "?!",
    "...",
    "--",
    "\u{2026}",
    "\u{2014}",
    "``",
    "''",
    "\"",
    "(",
    ")",
    "[",
    "]",
    "<",
    ">",
    "|",
    "_",
    "\u{2581}",
    "\u{301}",
    "e\u{301}",
    "\u{e9}",
    "\u{fb01}",
    "\u{130}",
    "\u{df}",
    "\u{1e9e}",
    "\u{200d}",
    "\u{fe0f}",
    "\u{202e}",
    "\u{fffd}",
];

/// A few sentences in many scripts, written for this purpose.
const SCRIPTS: [&str; 36] = [
    "The quick brown fox can't jump over 13 lazy dogs; it's 4:05 p.m., and they've all gone home!",
    "Na\u{ef}ve caf\u{e9} na\u{308}ive cafe\u{301} \u{c5}ngstr\u{f6}m A\u{30a}ngstro\u{308}m \u{fb01}ne \u{fb00}ort \u{1e69} s\u{323}\u{307} s\u{307}\u{323}",
    "Stra\u{df}e, STRASSE, \u{1e9e}; \u{130}stanbul, istanbul, I\u{131}i\u{307}; \u{3a3}\u{3af}\u{3c3}\u{3c5}\u{3c6}\u{3bf}\u{3c2}",
    "\u{41c}\u{430}\u{43c}\u{430} \u{43c}\u{44b}\u{43b}\u{430} \u{440}\u{430}\u{43c}\u{443}, \u{430} \u{451}\u{436}\u{438}\u{43a} \u{441}\u{43f}\u{430}\u{43b}. \u{418}\u{306}\u{438}\u{306}",
    "\u{645}\u{631}\u{62d}\u{628}\u{627} \u{628}\u{627}\u{644}\u{639}\u{627}\u{644}\u{645}\u{60c} \u{643}\u{62a}\u{628}\u{62a}\u{64f} \u{662}\u{663} \u{631}\u{633}\u{627}\u{644}\u{629}\u{64b}.",
    "\u{5e9}\u{5b8}\u{5dc}\u{5d5}\u{5b9}\u{5dd} \u{5e2}\u{5d5}\u{5dc}\u{5dd}, \u{5d6}\u{5d4} \u{5de}\u{5d1}\u{5d7}\u{5df} \u{200f}\u{5e7}\u{5d8}\u{5df}\u{200e}!",
    "\u{928}\u{92e}\u{938}\u{94d}\u{924}\u{947} \u{926}\u{941}\u{928}\u{93f}\u{92f}\u{93e}, \u{92f}\u{939} \u{90f}\u{915} \u{92a}\u{930}\u{940}\u{915}\u{94d}\u{937}\u{93e} \u{939}\u{948}\u{964}",
    "\u{9ac}\u{9be}\u{982}\u{9b2}\u{9be} \u{9ad}\u{9be}\u{9b7}\u{9be}\u{9df} \u{9b2}\u{9c7}\u{996}\u{9be} \u{9ac}\u{9be}\u{995}\u{9cd}\u{9af}",
    "\u{ba4}\u{bae}\u{bbf}\u{bb4}\u{bcd} \u{b8e}\u{bb4}\u{bc1}\u{ba4}\u{bcd}\u{ba4}\u{bc1}\u{b95}\u{bcd}\u{b95}\u{bb3}\u{bcd}",
    "\u{c24}\u{c46}\u{c32}\u{c41}\u{c17}\u{c41} \u{c35}\u{c3e}\u{c15}\u{c4d}\u{c2f}\u{c02} \u{d2e}\u{d32}\u{d2f}\u{d3e}\u{d33}\u{d02}",
    "\u{e2a}\u{e27}\u{e31}\u{e2a}\u{e14}\u{e35}\u{e0a}\u{e32}\u{e27}\u{e42}\u{e25}\u{e01}\u{e44}\u{e21}\u{e48}\u{e21}\u{e35}\u{e0a}\u{e48}\u{e2d}\u{e07}\u{e27}\u{e48}\u{e32}\u{e07}",
    "\u{eaa}\u{eb0}\u{e9a}\u{eb2}\u{e8d}\u{e94}\u{eb5} \u{1019}\u{1004}\u{103a}\u{1039}\u{1002}\u{101c}\u{102c}\u{1015}\u{102b} \u{179f}\u{17bd}\u{179f}\u{17d2}\u{178f}\u{17b8}",
    "\u{4f60}\u{597d}\u{ff0c}\u{4e16}\u{754c}\u{ff01}\u{4eca}\u{5929}\u{662f}2024\u{5e74}5\u{6708}\u{ff0c}\u{5929}\u{6c14}\u{4e0d}\u{9519}\u{3002}",
    "\u{7e41}\u{9ad4}\u{4e2d}\u{6587}\u{8207}\u{f900}\u{517c}\u{5bb9}\u{6f22}\u{5b57}\u{2f00}\u{3007}\u{20000}\u{2a6d6}",
    "\u{3053}\u{3093}\u{306b}\u{3061}\u{306f}\u{3001}\u{4e16}\u{754c}\u{3002}\u{30ab}\u{30bf}\u{30ab}\u{30ca}\u{30fc} \u{ff76}\u{ff9e}\u{ff70} \u{304b}\u{3099}\u{309b}",
    "\u{c548}\u{b155}\u{d558}\u{c138}\u{c694} \u{1112}\u{1161}\u{11ab}\u{1100}\u{1173}\u{11af} \u{3131}\u{314f} \u{ffa1}\u{ffc2}",
    "\u{1f600}\u{1f603} \u{1f469}\u{200d}\u{1f4bb} \u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467}\u{200d}\u{1f466} \u{1f44d}\u{1f3fd} \u{1f1e9}\u{1f1ea}\u{1f1eb}\u{1f1f7} \u{2764}\u{fe0f} #\u{fe0f}\u{20e3}",
    "\u{1d400}\u{1d7ce} \u{1d49c} \u{ff21}\u{ff42}\u{ff43} \u{2460}\u{24b6} \u{2122} \u{33a1} \u{3392} \u{fdfa} \u{1f100}",
    "x = [i**2 for i in range(10)]  # list\n\tif (a != b && !c) { return a->f[0] << 3; }\r\n    printf(\"%d\\n\", n);\n\n\n",
    "https://example.org/a/b?c=d&e=%20f#g user.name+tag@mail.example <b>bold</b> &amp; {{x}} $HOME ~/file.txt C:\\dir",
    "                  eighteen spaces, then\t\t\ttabs \u{a0}\u{a0} hard \u{2002}\u{2003}\u{2009}\u{202f}\u{205f}\u{3000} wide \u{2028}\u{2029}\u{85}\u{b}\u{c}",
    "\u{200b}zero\u{200c}width\u{200d}joiners\u{2060}and\u{feff}marks\u{ad}soft\u{34f}\u{61c}\u{180e}\u{202a}\u{202c}\u{2066}\u{2069}",
    "\0NUL\u{1}\u{2}\u{8}\u{1b}[31m\u{7f}\u{80}\u{9f}\u{e000}\u{f8ff}\u{fdd0}\u{fffe}\u{ffff}\u{10ffff}\u{e0001}\u{fff9}\u{fffc}\u{fffd}",
    "``quoted'' ''double'' \u{201c}curly\u{201d} \u{ab}guillemets\u{bb} \u{2018}single\u{2019} \u{300c}kagi\u{300d} \u{301d}\u{301f}",
    "1234567890 3.14159 1e-10 0xDEADBEEF 1,000,000 \u{661}\u{662}\u{663} \u{967}\u{968} \u{2153}\u{215e} \u{2160}\u{217b} 12\u{b0}C \u{20ac}99 $5 50%",
    "\u{ff26}\u{ff55}\u{ff4c}\u{ff4c}\u{3000}\u{ff57}\u{ff49}\u{ff44}\u{ff54}\u{ff48}\u{ff01} \u{ff5f}\u{ff60} \u{ffe5} \u{ff61}\u{ff64}",
    "a\u{300}\u{301}\u{302}\u{303}\u{304}\u{305} Z\u{351}\u{36b}a\u{343}l\u{36d}g\u{328}o\u{321} \u{1e00}\u{1ef9} \u{1ea4}\u{1ec7} Vi\u{1ec7}t Nam tie\u{302}\u{301}ng",
    "\u{10d2}\u{10d0}\u{10db}\u{10d0}\u{10e0}\u{10ef}\u{10dd}\u{10d1}\u{10d0} \u{532}\u{561}\u{580}\u{587} \u{12a0}\u{121b}\u{122d}\u{129b} \u{13a3}\u{13b3}\u{13a9} \u{1403}\u{14c4}\u{1403}",
    "\u{f56}\u{f7c}\u{f51}\u{f0b}\u{f66}\u{f90}\u{f51}\u{f0d} \u{182e}\u{1823}\u{1829}\u{182d}\u{1823}\u{182f} \u{1a00}\u{1b05} \u{a984}\u{a9a0} \u{a000}\u{a001}",
    "\u{10330}\u{10331} \u{12000} \u{13000}\u{13001} \u{11083}\u{110ab} \u{1e900}\u{1e922} \u{1f0a1} \u{1f6d5} \u{1fa70} \u{1d11e}",
    "<s> </s> <unk> <pad> <mask> [CLS] [SEP] [MASK] [PAD] <|endoftext|> <|im_start|>system<|im_end|> <bos><eos> <extra_id_0>",
    "THIS IS LOUD, isn't it? mixedCase snake_case kebab-case SCREAMING_CASE CamelCaseURLParser v1.2.3-rc.4+build.5",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "========================================================================================================================================",
    "we'Re he'D they'lL \u{2bc}s o\u{2bc}clock l\u{2019}homme d'accord rock'n'roll '90s 's 't '' 'tis y'all'd've",
    "line one\n  indented\n\n    twice\r\n\r\nwindows\rmac\n \n\t\n trailing   \n",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids are code points, but for one string that one of the engines gets wrong.
    struct Planted {
        wrong: &'static str,
    }

    impl Ids for Planted {
        fn parse_special(&mut self, _: bool) {}

        fn encode(&self, text: &str, _: &mut Scratch, out: &mut Vec<u32>) -> Result<(), String> {
            out.extend(text.chars().map(|c| c as u32));
            if !self.wrong.is_empty() && text.contains(self.wrong) {
                *out.last_mut().expect("not empty") += 1;
            }
            Ok(())
        }

        fn encode_framed(&self, text: &str) -> Result<Vec<u32>, String> {
            Ok(text.chars().map(|c| c as u32).collect())
        }

        fn decode(&self, ids: &[u32]) -> Result<String, String> {
            Ok(ids.iter().filter_map(|id| char::from_u32(*id)).collect())
        }
    }

    #[test]
    fn a_character_that_the_engines_see_differently_is_doubtful_and_one_wrong_id_elsewhere_is_enough() {
        let compare = |wrong| compare(&mut Planted { wrong }, &mut Planted { wrong: "" }, 300, &["<x>".to_string()]);
        assert_eq!(compare(""), Verdict::Agree(Doubtful::parse("20000-dffff e0200-10ffff").unwrap()));
        let Verdict::Agree(doubtful) = compare("\u{aa00}") else { panic!("one character is no reason to refuse all") };
        assert!(doubtful.in_text("abc \u{aa00}") && !doubtful.in_text("abc \u{aa01}"));
        for wrong in ["\u{ff76}\u{ff9e}", "12\u{b0}C", "<x>", "\u{7}"] {
            let Verdict::Differ(why) = compare(wrong) else { panic!("{wrong:?} was not found") };
            assert!(why.contains("the engines differ on"), "{why}");
        }
    }

    #[test]
    fn verdicts_are_kept_and_garbage_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let path = verdict_path(dir.path(), 7);
        assert_eq!(recall(&path), None);
        for verdict in [Verdict::Agree(Doubtful::parse(" 9fe 11935-11938").unwrap()), Verdict::Differ("why\nso".into())] {
            let _ = std::fs::remove_file(&path);
            assert_eq!(settle(&path, || verdict.clone()), verdict);
            let kept = settle(&path, || panic!("it is kept"));
            assert!(kept == verdict || kept == Verdict::Differ("why so".into()));
            assert_eq!(recall(&path), Some(kept));
        }
        for garbage in ["agree but for: 9f", "agree but for: xyz\n", "yes\n", ""] {
            std::fs::write(&path, garbage).unwrap();
            assert_eq!(recall(&path), None, "{garbage:?}");
            assert_eq!(settle(&path, || Verdict::Differ("found".into())), Verdict::Differ("found".into()), "{garbage:?}");
        }
    }
}

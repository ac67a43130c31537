//! Pretrained encoder-decoders: text in, text out, and what the model looked at.

use burn::tensor::Device;
use regard_kernels::{
    KernelError,
    matmul::Storage,
    stack::{ChangedHead, Observer, QueryKeys, QueryObserver, Stack},
};
use regard_models::{
    generate::{BeamConfig, Hypothesis, SearchTree},
    gradient::OutputGradients,
    pretrained::{Encoding, Look, PretrainedError, Seq2SeqModel, Tokenizer},
};
use regard_trace::{AttentionMap, Kind, Token, Tokens, Trace};

use crate::{
    Translated,
    corpus::CorpusError,
    opened::{Opened, OpenedError, axis, map_of},
    recipe::{LongSource, MaxLength, Translation as Settings},
    translator::{LineError, Translation, beam_config, expect_room, of_lines},
};

/// The widest beam: a wider one gains nothing and takes memory.
pub const WIDEST_BEAM: usize = 1024;

/// A position of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Query {
    /// Counted from 0.
    At(usize),
    /// The last one.
    Last,
}

/// An encoder-decoder with the tokenizers of what it reads and what it writes.
pub struct TextToText {
    opened: Opened,
    target: Tokenizer,
    model: Seq2SeqModel,
    /// What stands in front of every text.
    prefix: String,
}

/// Which weights are wanted, each counted from 0; `None` for all.
#[derive(Clone, Copy, Default)]
pub struct Wanted {
    /// Which attention.
    pub kind: Option<Kind>,
    /// Which layer.
    pub layer: Option<usize>,
    /// Which head.
    pub head: Option<usize>,
    /// Which position: of the source in the encoder, else of the target.
    pub query: Option<Query>,
}

impl TextToText {
    /// Reads the model of an opened folder. [`without_rows`](Self::without_rows) then says what to warn of.
    ///
    /// # Errors
    /// What is wrong with its files.
    pub fn read(
        opened: Opened,
        storage: Option<Storage>,
        prefix: &str,
    ) -> Result<Self, OpenedError> {
        let folder = opened.folder()?;
        let model = Seq2SeqModel::open(folder, storage)?;
        let target = Tokenizer::open_target(folder.path())?;
        let rows = model.source_vocabulary();
        opened.tokenizer.expect_most_rows(rows)?;
        target.expect_most_rows(model.decoder().vocabulary())?;
        let prefix = prefix.to_owned();
        Ok(Self {
            opened,
            target,
            model,
            prefix,
        })
    }

    /// The search that the model's files ask for.
    pub fn settings(&self) -> Settings {
        let (writing, usual) = (self.model.writing(), Settings::default());
        let max_length = writing.longest.map_or(usual.max_length, Self::at_most);
        Settings {
            beam: writing.search.size.min(WIDEST_BEAM),
            length_penalty: writing.search.length_penalty,
            no_repeat_ngram: writing.search.no_repeat_ngram,
            max_source_tokens: self.model.source_context().min(usual.max_source_tokens),
            max_length: MaxLength {
                absolute: max_length.absolute.min(self.model.decoder().context()),
                ..max_length
            },
            ..usual
        }
    }

    /// A limit of `tokens` for every source: where a model's files or its user state the length, that of the source does not count.
    pub fn at_most(tokens: usize) -> MaxLength {
        MaxLength {
            extra: tokens,
            absolute: tokens,
            ..MaxLength::default()
        }
    }

    /// What to warn of if some tokens of what it reads or of what it writes have no embedding: texts with them are refused.
    pub fn without_rows(&self) -> Option<String> {
        let of_source = self.opened.tokenizer.without_rows();
        of_source.or_else(|| self.target.without_rows())
    }

    /// The settings of the model's files that are not obeyed.
    pub fn ignored(&self) -> &[&'static str] {
        &self.model.writing().ignored
    }

    /// The search that `settings` describe; what they leave open is the model's.
    fn beam(&self, settings: &Settings) -> BeamConfig {
        let own = &self.model.writing().search;
        BeamConfig {
            penalty: own.penalty,
            stopping: own.stopping,
            forced_end: own.forced_end,
            ..beam_config(settings)
        }
    }

    /// Translates `lines`, giving one result a line in the same order. Lines are batched by length within the call; batching
    /// changes no result. `looking` says whether to record what the model looked at.
    ///
    /// # Errors
    /// A line that is too long, where `settings` make that an error. Of the lines that are refused otherwise ([`LineError::Of`]) the
    /// first: where it has a token without an embedding, or the maps of all of its translations do not fit in memory.
    pub fn translate(
        &self,
        lines: &[String],
        settings: &Settings,
        looking: bool,
    ) -> Result<Vec<Translated>, LineError> {
        let limit = settings.max_source_tokens.min(self.model.source_context());
        let mut sources = vec![];
        for (line, text) in (1..).zip(lines) {
            let found = self.source(text, limit);
            let (ids, length) = found.map_err(|error| LineError::from(error).of_line(line))?;
            if settings.long_lines == LongSource::Error && length > limit {
                return Err(LineError::Line(CorpusError::LongLine {
                    line,
                    side: "source",
                    length,
                    limit,
                    unit: "tokens",
                }));
            }
            sources.push((ids, (length > limit).then_some(length)));
        }
        let mut order: Vec<usize> = (0..lines.len()).collect();
        order.sort_by_key(|&line| sources[line].0.len());
        let beam = self.beam(settings);
        let mut results: Vec<_> = lines.iter().map(|_| None).collect();
        for batch in order.chunks(settings.batch_sentences.max(1)) {
            let texts: Vec<&[u32]> = batch.iter().map(|&line| &sources[line].0[..]).collect();
            let found = self
                .model
                .write(&texts, &beam)
                .map_err(PretrainedError::from)?;
            for (&line, found) in batch.iter().zip(found) {
                let (source, cut_from) = &sources[line];
                let n_best = self.translations(&lines[line], source, &found, looking);
                results[line] = Some(n_best.map(|n_best| Translated {
                    n_best,
                    cut_from: *cut_from,
                    unfamiliar: None,
                }));
            }
        }
        of_lines(results)
    }

    /// The translations of a line, with what was looked at for each of them if all of that fits in memory.
    fn translations(
        &self,
        line: &str,
        source: &[u32],
        found: &[Hypothesis],
        looking: bool,
    ) -> Result<Vec<Translation>, LineError> {
        if looking && !source.is_empty() {
            let numbers = found.iter().map(|one| {
                let lengths = [source.len(), one.with_end().len()];
                self.looks(lengths, &Wanted::default()).1
            });
            expect_room(numbers.fold(0, usize::saturating_add))?;
        }
        let found = found.iter().enumerate();
        found
            .map(|(rank, one)| self.translation(line, source, one, rank, looking))
            .collect()
    }

    /// The tokens of a source, at most `limit`, and how many there would be; none for an empty line.
    fn source(&self, text: &str, limit: usize) -> Result<(Vec<u32>, usize), PretrainedError> {
        if text.trim().is_empty() {
            return Ok((vec![], 0));
        }
        let text = format!("{}{text}", self.prefix);
        let Encoding {
            mut ids, special, ..
        } = self.opened.tokenizer.encode(&text, true)?;
        let length = ids.len();
        if length > limit {
            // The marks at the end stay.
            let marks = special.iter().rev().take_while(|special| **special).count();
            let marks = marks.min(limit);
            ids.drain(limit - marks..length - marks);
        }
        Ok((ids, length))
    }

    fn translation(
        &self,
        line: &str,
        source: &[u32],
        hypothesis: &Hypothesis,
        rank: usize,
        looking: bool,
    ) -> Result<Translation, LineError> {
        let text = self.target.decode(&hypothesis.tokens, true)?;
        let mut trace = Trace::new(&self.opened.name, line, text.clone())
            .with_score(hypothesis.score)
            .with_rank(rank);
        if looking && !source.is_empty() {
            let written = hypothesis.with_end();
            for map in self.maps(source, &written, &Wanted::default())? {
                trace = trace.with_map(map);
            }
        }
        Ok(Translation {
            text,
            score: hypothesis.score,
            log_probability: hypothesis.log_probability,
            tokens: hypothesis.with_end().len(),
            finished: hypothesis.finished,
            trace,
        })
    }

    /// What the model looks at while it reads `text` and writes `target`, or what it writes itself.
    ///
    /// # Errors
    /// Texts that are too long or have no tokens; a layer, head or query that is not there.
    pub fn look(
        &self,
        text: &str,
        target: Option<&str>,
        wanted: &Wanted,
    ) -> Result<Trace, OpenedError> {
        let [source, written] = self.read_and_written(text, target)?;
        self.expect(wanted, source.len().max(written.len()))?;
        let shown = self.target.decode(&written, true)?;
        let maps = self.maps(&source, &written, wanted)?;
        let trace = Trace::new(&self.opened.name, text, shown);
        Ok(maps.into_iter().fold(trace, Trace::with_map))
    }

    /// The tokens of `text`, and those of `target`, or what the model writes itself.
    ///
    /// # Errors
    /// Texts that are too long or have no tokens.
    pub fn read_and_written(
        &self,
        text: &str,
        target: Option<&str>,
    ) -> Result<[Vec<u32>; 2], OpenedError> {
        let context = self.model.source_context();
        let (source, tokens) = self.source(text, usize::MAX)?;
        if tokens > context {
            return Err(OpenedError::LongPrompt { tokens, context });
        }
        let context = self.model.decoder().context();
        let written = match target {
            Some(target) => self.target.encode(target, true)?.ids,
            None => {
                let beam = self.beam(&self.settings());
                let mut found = self.model.write(&[&source], &beam)?.into_iter().flatten();
                let best = found.next().unwrap_or_else(Hypothesis::empty);
                best.with_end()
            }
        };
        if source.is_empty() || written.is_empty() {
            let side = if source.is_empty() { "text" } else { "target" };
            let message = format!("the {side} has no tokens; give some text");
            return Err(OpenedError::Asked(message));
        }
        if written.len() > context {
            let tokens = written.len();
            return Err(OpenedError::LongPrompt { tokens, context });
        }
        Ok([source, written])
    }

    /// What the encoder reads, what the decoder reads, and what it writes, as the axes of a picture.
    ///
    /// # Errors
    /// A tokenizer that cannot decode them.
    pub fn texts(&self, source: &[u32], written: &[u32]) -> Result<[Tokens; 3], PretrainedError> {
        let read = axis(&self.opened.tokenizer, source)?;
        let written = axis(&self.target, written)?;
        let start = self.target.token(self.model.writing().start);
        let past = written.iter().take(written.len().saturating_sub(1));
        let inputs =
            std::iter::once(Token::special(start.unwrap_or_default())).chain(past.cloned());
        Ok([read, inputs.collect(), written])
    }

    /// The stacks of encoder and decoder.
    pub fn stacks(&self) -> [&Stack; 2] {
        [self.model.encoder(), self.model.decoder().stack()]
    }

    /// Refuses a layer, a head or a query that neither encoder nor decoder has.
    fn expect(&self, wanted: &Wanted, tokens: usize) -> Result<(), OpenedError> {
        let stacks = self.stacks();
        let layers = stacks.map(|stack| stack.blocks().len());
        let heads = stacks.map(|stack| stack.sizes().heads);
        let query = match wanted.query {
            Some(Query::At(position)) => Some(position),
            _ => None,
        };
        for (name, asked, [encoder, decoder]) in [
            ("layer", wanted.layer, layers),
            ("head", wanted.head, heads),
            ("query", query, [tokens; 2]),
        ] {
            let most = encoder.max(decoder);
            if let Some(asked) = asked
                && asked >= most
            {
                let message = format!("--{name} {}: there are at most {most}", asked + 1);
                return Err(OpenedError::Asked(message));
            }
        }
        Ok(())
    }

    /// The maps of the encoder, of the decoder, and between them, while `written` is written.
    fn maps(
        &self,
        source: &[u32],
        written: &[u32],
        wanted: &Wanted,
    ) -> Result<Vec<AttentionMap>, LineError> {
        let inputs = self.inputs(written);
        let ([mut of_source, mut of_target], numbers) =
            self.looks([source.len(), written.len()], wanted);
        expect_room(numbers)?;
        self.observe(source, &inputs, &mut of_source, &mut of_target)?;

        let [read, inputs, written] = self.texts(source, written)?;
        let (source_query, target_query) = (of_source.query, of_target.query);
        let mut maps = vec![];
        for seen in of_target.maps() {
            let (kind, queries, keys) = match seen.cross {
                true => (Kind::Cross, &written, &read),
                false => (Kind::DecoderSelf, &inputs, &inputs),
            };
            let map = map_of(kind, queries, keys, target_query, wanted.head, seen)?;
            maps.push(match kind {
                Kind::Cross => map,
                _ => {
                    let shown = map.queries().labels().len();
                    let first = target_query.unwrap_or(0);
                    let next: Tokens = written.iter().skip(first).take(shown).cloned().collect();
                    map.predicting(next)?
                }
            });
        }
        // Cross-attention comes first, as it is nearest to an alignment, and the last layer before the others.
        maps.sort_by_key(|map| (map.kind() != Kind::Cross, std::cmp::Reverse(map.layer())));
        let mut of_source: Vec<_> = of_source.maps().collect();
        of_source.reverse();
        for seen in of_source {
            let kind = Kind::EncoderSelf;
            maps.push(map_of(kind, &read, &read, source_query, wanted.head, seen)?);
        }
        Ok(maps)
    }

    /// What is looked at while a source is read and a target written, of these lengths, and how many weights that gives.
    fn looks(&self, [source, written]: [usize; 2], wanted: &Wanted) -> ([Look; 2], usize) {
        let [encoder, decoder] = self.stacks();
        let looks = |kind| wanted.kind.is_none_or(|one| one == kind);
        let look = |stack: &Stack, length: usize| {
            let mut look = Look::new(length);
            (look.layer, look.head) = (wanted.layer, wanted.head);
            look.query = wanted.query.map(|query| match query {
                Query::At(position) => position,
                Query::Last => length - 1,
            });
            let there = |one: Option<usize>, count| one.is_none_or(|one| one < count);
            look.own = there(look.head, stack.sizes().heads) && there(look.query, length);
            look
        };
        let mut of_source = look(encoder, source);
        let mut of_target = look(decoder, written);
        of_target.source = (of_target.own && looks(Kind::Cross)).then_some(source);
        of_target.own &= looks(Kind::DecoderSelf);
        of_source.own &= looks(Kind::EncoderSelf);
        let numbers = [(&of_source, encoder), (&of_target, decoder)]
            .map(|(look, stack)| look.numbers(stack.blocks().len(), stack.sizes().heads));
        let numbers = numbers[0].saturating_add(numbers[1]);
        ([of_source, of_target], numbers)
    }

    /// What the decoder reads while it writes `written`: the token that starts a text, and then each that it wrote before.
    fn inputs(&self, written: &[u32]) -> Vec<u32> {
        let start = self.model.writing().start;
        let before = written.iter().take(written.len().saturating_sub(1));
        [start].into_iter().chain(before.copied()).collect()
    }

    /// Reads `source` and writes `written`, observed.
    ///
    /// # Errors
    /// Texts that the model cannot read.
    pub fn watch(
        &self,
        [source, written]: [&[u32]; 2],
        encoder: &mut (dyn Observer + Send),
        decoder: &mut (dyn Observer + Send),
    ) -> Result<(), PretrainedError> {
        self.observe(source, &self.inputs(written), encoder, decoder)
    }

    /// Reads a source and what the decoder reads, observed.
    fn observe(
        &self,
        source: &[u32],
        inputs: &[u32],
        of_source: &mut (dyn Observer + Send),
        of_target: &mut (dyn Observer + Send),
    ) -> Result<(), PretrainedError> {
        let states = self.model.encode(&[source], Some(of_source))?;
        let mut reading = self.model.begin(&states, Default::default());
        reading.read(&[inputs], Some(of_target))?;
        Ok(())
    }

    /// Changes these heads of the encoder and of the decoder from now on, and no others.
    ///
    /// # Errors
    /// A head that is not there.
    pub fn change_heads(
        &mut self,
        encoder: Vec<ChangedHead>,
        decoder: Vec<ChangedHead>,
    ) -> Result<(), KernelError> {
        self.model.change_heads(encoder, decoder)
    }

    /// The hypotheses for a text, best first, and the tree of their search by `settings` with the `listed` likeliest proposals of each step.
    ///
    /// # Errors
    /// A text that the model cannot read; [`LineError::TooManyWeights`] if the maps of all hypotheses do not fit in memory.
    pub fn search_tree(
        &self,
        text: &str,
        settings: &Settings,
        listed: usize,
    ) -> Result<(Vec<Translation>, SearchTree), LineError> {
        let (source, found, tree) = self.searched(text, settings, listed)?;
        let found = self.translations(text, &source, &found, true)?;
        Ok((found, tree))
    }

    fn searched(
        &self,
        text: &str,
        settings: &Settings,
        listed: usize,
    ) -> Result<(Vec<u32>, Vec<Hypothesis>, SearchTree), PretrainedError> {
        let limit = settings.max_source_tokens.min(self.model.source_context());
        let (source, _) = self.source(text, limit)?;
        let (found, tree) = (self.model).write_tree(&source, &self.beam(settings), listed)?;
        Ok((source, found, tree))
    }

    /// The text that each of `tokens` adds to what is written if it follows `context`, or its name if it adds none.
    ///
    /// # Errors
    /// A tokenizer that cannot decode it.
    pub fn following(
        &self,
        context: &[u32],
        tokens: &[u32],
    ) -> Result<Vec<String>, PretrainedError> {
        self.target.following(context, tokens)
    }

    /// Hypothesis `rank` of a text, and the gradients of its log probability with respect to each weight of attention, from the model
    /// with all heads as they are. `None` if there is no such hypothesis.
    ///
    /// # Errors
    /// A text that the model cannot read; [`LineError::Gradients`].
    pub fn gradients(
        &self,
        text: &str,
        settings: &Settings,
        rank: usize,
    ) -> Result<Option<(String, OutputGradients)>, LineError> {
        let (source, found, _) = self.searched(text, settings, 0)?;
        let Some(hypothesis) = found.get(rank) else {
            return Ok(None);
        };
        let written = hypothesis.with_end();
        let found = self.model.gradients(&source, &written, &Device::flex())?;
        Ok(Some((self.target.decode(&hypothesis.tokens, true)?, found)))
    }

    /// One query of the encoder, of the decoder, or of the decoder to the source, for hypothesis `rank` of a text. `None` if there is no
    /// such query.
    ///
    /// # Errors
    /// A text that the model cannot read.
    pub fn query(
        &self,
        text: &str,
        settings: &Settings,
        rank: usize,
        kind: Kind,
        [layer, head, query]: [usize; 3],
    ) -> Result<Option<QueryKeys>, PretrainedError> {
        let (source, found, _) = self.searched(text, settings, 0)?;
        let Some(hypothesis) = found.get(rank) else {
            return Ok(None);
        };
        let inputs = self.inputs(&hypothesis.with_end());
        let mut observer = QueryObserver::new(layer, kind == Kind::Cross, head, query);
        // Whoever wants nothing costs nothing.
        let mut nothing = Look::new(0);
        nothing.own = false;
        match kind {
            Kind::EncoderSelf => self.observe(&source, &inputs, &mut observer, &mut nothing)?,
            _ => self.observe(&source, &inputs, &mut nothing, &mut observer)?,
        }
        Ok(observer.found())
    }
}

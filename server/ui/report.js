// Draws kvblend.v1.PromptReport: timings as bars, the prompt as a heat map of its tokens. Used by /ui and by the pages that
// `kvblend generate --html` writes. All text goes in as text, never as markup.
'use strict';

const drawReport = (() => {
  const element = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const name = (value, prefix) => (value || '').replace(prefix, '').toLowerCase().replace(/_/g, ' ');
  const seconds = (value) => value >= 1 ? `${value.toFixed(2)} s` : `${(1000 * value).toFixed(value < 0.01 ? 1 : 0)} ms`;
  const plural = (count, word) => `${count.toLocaleString('en')} ${word}${count === 1 ? '' : 's'}`;

  function drawTimings(report) {
    const parts = [['queue', report.queue_seconds], ['lookup', report.lookup_seconds], ['load', report.load_seconds],
      ['select', report.select_seconds], ['prefill', report.prefill_seconds],
      ['others', report.others_seconds]].map(([part, time]) => [part, time || 0]);
    const total = parts.reduce((sum, [, time]) => sum + time, 0) || 1;
    const bar = element('div', 'bar');
    bar.setAttribute('role', 'img');
    bar.setAttribute('aria-label', parts.map(([part, time]) => `${part} ${seconds(time)}`).join(', '));
    for (const [part, time] of parts) {
      const piece = element('span', '', time / total > 0.08 ? `${part} ${seconds(time)}` : '');
      piece.style.width = `${100 * time / total}%`;
      piece.title = `${part} ${seconds(time)}`;
      bar.append(piece);
    }
    return bar;
  }

  function drawLegend(report, measured) {
    const kinds = [
      ['exact', 'exact', report.exact_tokens, 'stored KV that is what full prefill gives'],
      ['reused', 'reused', report.reused_tokens, measured ? 'the stronger its colour, the higher its score' : 'stored KV as it is'],
      ['recomputed', 'recomputed', report.recomputed_tokens, 'chosen by the policy'],
      ['computed', 'computed', report.computed_tokens, 'not in the store: misses, history, question'],
    ];
    if (report.kept_tokens) kinds.unshift(['kept', 'kept', report.kept_tokens, 'of an earlier turn']);
    const legend = element('ul', 'legend');
    for (const [kind, label, tokens, meaning] of kinds) {
      const item = element('li');
      const swatch = element('i', kind);
      if (kind === 'reused') swatch.style.background = 'rgba(var(--reused), .5)';
      if (kind === 'recomputed') swatch.style.background = 'rgba(var(--recomputed), .5)';
      item.append(swatch, `${plural(tokens || 0, 'token')} ${label} (${meaning})`);
      legend.append(item);
    }
    return legend;
  }

  // What became of the tokens of a part that the policy did not choose.
  function fateOf(span, chunk, isAnchor) {
    if (!chunk) return isAnchor ? 'exact' : 'computed';
    switch (name(chunk.source, 'CHUNK_SOURCE_')) {
      case 'exact': return 'exact';
      case 'blended': case 'other anchor': return 'reused';
      default: return 'computed';
    }
  }

  function titleOf(span, chunk, fate) {
    const part = name(span.part, 'PROMPT_PART_');
    if (!chunk) return `${part} · ${plural(span.texts.length, 'token')} · ${fate}`;
    const tier = chunk.tier && chunk.tier !== 'TIER_UNSPECIFIED' ? ` from ${name(chunk.tier, 'TIER_')}` : '';
    const again = (span.recomputed || []).length;
    return `chunk ${span.chunk_index + 1} · ${plural(span.texts.length, 'token')} · ${name(chunk.source, 'CHUNK_SOURCE_')}${tier}` +
        (again ? ` · ${again} recomputed` : '');
  }

  function drawMap(report) {
    const spans = report.explanation;
    const highest = Math.max(0, ...spans.map((span) => (span.scores || []).reduce((a, b) => Math.max(a, b), 0)));
    const chunks = new Map((report.chunks || []).map((chunk) => [chunk.index || 0, chunk]));
    const map = element('div', 'map');
    map.setAttribute('role', 'group');
    map.setAttribute('aria-label', 'The prompt, token by token. Arrow keys move from token to token.');
    const detail = element('p', 'detail', 'Point at a token, or move to one with the arrow keys.');
    detail.setAttribute('role', 'status');
    const tokens = [];
    // The anchor, the parts before the first chunk or history, is found exactly or is not stored.
    let exactLeft = report.exact_tokens || 0;
    let keptLeft = report.kept_tokens || 0;  // from the prompt's beginning on
    for (const span of spans) {
      const isChunk = span.part === 'PROMPT_PART_CHUNK';
      const chunk = isChunk ? chunks.get(span.chunk_index) : undefined;
      const isAnchor = !isChunk && span.part !== 'PROMPT_PART_QUESTION' && exactLeft >= span.texts.length;
      const fate = fateOf(span, chunk, isAnchor);
      if (fate === 'exact') exactLeft -= span.texts.length;
      map.append(element('h4', '', titleOf(span, chunk, fate)));
      const paragraph = element('p');
      paragraph.dir = 'auto';
      const again = new Set(span.recomputed || []);
      span.texts.forEach((text, place) => {
        const score = span.scores && span.scores.length ? span.scores[place] : undefined;
        const chosen = again.has(place);
        const became = keptLeft-- > 0 ? 'kept' : chosen ? 'recomputed' : fate;
        const shown = element('span', became, text);
        const strength = score !== undefined && highest > 0 ? Math.sqrt(score / highest) : 0.25;
        if (chosen) shown.style.background = `rgba(var(--recomputed), ${(0.15 + 0.6 * strength).toFixed(3)})`;
        else if (became === 'reused') shown.style.background = `rgba(var(--reused), ${(0.06 + 0.6 * strength).toFixed(3)})`;
        shown.dataset.detail = `${JSON.stringify(text)}: ${became}` +
            (score !== undefined ? `, score ${score.toPrecision(3)}` : '') +
            (chunk ? `, token ${place + 1} of chunk ${span.chunk_index + 1}` : `, ${name(span.part, 'PROMPT_PART_')}`);
        shown.tabIndex = -1;
        tokens.push(shown);
        paragraph.append(shown);
      });
      map.append(paragraph);
    }
    if (tokens.length) tokens[0].tabIndex = 0;
    const tell = (event) => {
      if (event.target.dataset.detail) detail.textContent = event.target.dataset.detail;
    };
    map.addEventListener('mouseover', tell);
    map.addEventListener('focusin', tell);
    map.addEventListener('keydown', (event) => {
      const step = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: 20, ArrowUp: -20, Home: -tokens.length, End: tokens.length}[event.key];
      const at = tokens.indexOf(document.activeElement);
      if (!step || at < 0) return;
      event.preventDefault();
      const next = tokens[Math.min(tokens.length - 1, Math.max(0, at + step))];
      tokens[at].tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
    return [drawLegend(report, highest > 0), map, detail];
  }

  // Replaces what is in `into`. `report` is in protobuf's JSON with the proto's names.
  return (report, into) => {
    const share = Math.round(100 * (report.ratio || 0));
    const line = element('p', '', `${plural(report.prompt_tokens || 0, 'token')}; policy ${name(report.policy, 'POLICY_')}` +
        `, ${share}% of the inexact tokens recomputed; first token after ${seconds(report.time_to_first_token_seconds || 0)}` +
        (report.correction ? '; stored KV corrected' : ''));
    into.replaceChildren(line, drawTimings(report), ...((report.explanation || []).length ? drawMap(report) : []));
  };
})();

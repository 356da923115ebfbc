// The load beside the store on the page at /ui: asks GET /v1/info every few seconds, while somebody can see the page and never twice
// at once.
'use strict';

/**
 * @param {(signal: AbortSignal) => Promise<object>} askInfo kvblend.v1.GetInfoResponse in protobuf's JSON; rejects with `status` 401
 *     where a key is missing
 * @return {() => void} to be called when it is worth asking: at the beginning, and with another key
 */
const watchLoad = (askInfo) => {
  const kEveryMs = 3000;
  const kAfterErrorMs = 15000;
  const kTimeoutMs = 10000;
  const $ = (id) => document.getElementById(id);
  const count = (value) => (value || 0).toLocaleString('en');
  const percent = (part, whole) => whole > 0 ? Math.min(100, 100 * part / whole) : 0;
  const size = (value) => value >= 1e9 ? `${(value / 1e9).toFixed(1)} GB` : `${Math.round(value / 1e6)} MB`;

  let asking = null;    // AbortController of the request in flight
  let timer = null;     // until the next one
  let last = null;      // {tokens, uptime}: what the rate is counted from
  let started = false;  // there is no use in asking before

  const wanted = () => started && $('load-live').checked && !document.hidden;

  function show(id, text, hint = '') {
    const small = document.createElement('small');
    small.textContent = hint;
    $(id).replaceChildren(text, ...(hint ? [' ', small] : []));
  }

  /** Of the parts of a bar the lengths, in percent. What they say is said in words beside it. */
  function fill(id, ...lengths) {
    lengths.forEach((length, place) => { $(id).children[place].style.width = `${length}%`; });
  }

  function tell(text, isError = false) {
    if ($('load-status').textContent !== text) $('load-status').textContent = text;  // else it would be read out again
    $('load-status').className = isError ? 'error' : 'hint';
    $('load-figures').classList.toggle('stale', isError);
  }

  /** Tokens of answers per second since the last look; null before there are two, and where the server began anew. */
  function rateOf(load, uptime) {
    const tokens = Number(load.decoded_tokens || 0);
    const before = last;
    last = {tokens, uptime};
    return before && uptime > before.uptime && tokens >= before.tokens ? (tokens - before.tokens) / (uptime - before.uptime) : null;
  }

  function draw(info) {
    const {load, store} = info;
    $('load-figures').hidden = $('load-choice').hidden = info.totals_left_out;
    if (info.totals_left_out) {
      return tell('How busy and how full the server is sums over all tenants. It is shown to admins, and this key is none\'s.');
    }
    const rate = rateOf(load, info.uptime_seconds);
    const computing = Math.max(0, load.requests_running - load.sequences_decoding);
    show('load-decoding', count(load.sequences_decoding), load.sequences_decoding === 1 ? 'answer' : 'answers');
    show('load-prefill', count(computing), computing === 1 ? 'request' : 'requests');
    show('load-waiting', count(load.requests_waiting), load.requests_waiting > 0 ?
      `${count(Number(load.tokens_waiting))} tokens, ${load.predicted_wait_seconds.toFixed(1)} s` : '');
    show('load-rate', rate === null ? '–' : rate.toFixed(rate < 10 ? 1 : 0), 'tokens/s');
    show('load-pages', `${Math.round(percent(load.pages_used, load.pages_total))}%`,
        `${count(load.pages_used)} of ${count(load.pages_total)}` + (load.pages_kept ? `, ${count(load.pages_kept)} kept` : ''));
    fill('load-pages-bar', percent(load.pages_used, load.pages_total), percent(load.pages_kept, load.pages_total));
    const [used, budget] = [Number(store.used_bytes), Number(store.budget_bytes)];
    const chunks = Number(store.prompt_chunks);
    show('load-store', `${Math.round(percent(used, budget))}%`, `${size(used)} of ${size(budget)}`);
    show('load-hits', chunks ? `${Math.round(percent(Number(store.prompt_chunks_found), chunks))}%` : '–',
        `of ${count(chunks)} chunks`);
    fill('load-store-bar', percent(used, budget));
    tell('');
  }

  async function look() {
    clearTimeout(timer);
    if (asking || !wanted()) return;
    const request = asking = new AbortController();
    const late = setTimeout(() => request.abort(new Error(`no answer within ${kTimeoutMs / 1000} s`)), kTimeoutMs);
    let next = kEveryMs;
    try {
      const info = await askInfo(request.signal);
      draw(info);
      if (info.totals_left_out) started = false;  // it stays so
    } catch (error) {
      last = null;
      if (error.name === 'AbortError') {  // by lookOrRest; somebody may look again by now
        next = 0;
      } else {
        next = kAfterErrorMs;
        started = error.status !== 401;
        tell(error.message, true);
      }
    } finally {
      clearTimeout(late);
      asking = null;
      if (wanted()) timer = setTimeout(look, next);
    }
  }

  /** Nothing is asked, and no timer runs, while nobody looks. */
  function lookOrRest() {
    if (wanted()) return look();
    clearTimeout(timer);
    asking?.abort();
    last = null;  // the rate over a long rest says nothing of now
  }

  document.addEventListener('visibilitychange', lookOrRest);
  $('load-live').onchange = lookOrRest;
  return () => {
    started = true;
    look();
  };
};

// The page at /ui: documents in, a question, the answer streamed beside full prefill's. Speaks the HTTP API only (docs/http-api.md).
'use strict';

(() => {
  const $ = (id) => document.getElementById(id);
  const kChunkTokens = 512;

  /** @type {{title: string, text: string, state: string}[]} */
  let documents = [];
  let running = null;  // AbortController of what is in progress

  // --- the API -------------------------------------------------------------------------------------------------------

  class ApiError extends Error {
    constructor(message, status) {
      super(message);
      this.status = status;
    }
  }

  /** What is typed or pasted, without blanks around it. fetch() throws at some characters as it does where nobody answers. */
  function apiKey() {
    const key = $('key').value.trim();
    const wrong = key.match(/[^ -~]/u)?.[0];
    if (wrong) {
      const code = wrong.codePointAt(0).toString(16).toUpperCase().padStart(4, '0');
      throw new ApiError(`the API key has a character that no key has: U+${code}`, 401);
    }
    return key;
  }

  async function call(path, body, signal) {
    const headers = {};
    const key = apiKey();
    if (key) headers.Authorization = `Bearer ${key}`;
    if (body) headers['Content-Type'] = 'application/json';
    let response;
    try {
      response = await fetch(path, {method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body), signal});
    } catch (error) {
      throw error instanceof TypeError ? new Error('the server cannot be reached') : error;  // else it was given up
    }
    if (response.ok) return response;
    $('key-field').hidden = $('key-field').hidden && response.status !== 401;
    let message = `HTTP ${response.status}`;
    try { message = (await response.json()).error.message || message; } catch { /* not ours */ }
    throw new ApiError(message, response.status);
  }

  /** The objects of a stream of server-sent events. */
  async function* events(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = '';
    for (;;) {
      const {value, done} = await reader.read().catch((error) => {
        if (error.name === 'AbortError') throw error;
        return {done: true};
      });
      if (done) throw new ApiError('the answer broke off');
      text += value;
      for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
        const data = text.slice(0, end).replace(/^data: /, '');
        text = text.slice(end + 2);
        if (data === '[DONE]') return;
        const object = JSON.parse(data);
        if (object.error) throw new ApiError(object.error.message);
        yield object;
      }
    }
  }

  // --- documents -----------------------------------------------------------------------------------------------------

  const wire = ({title, text}) => title ? {title, text} : {text};

  /** All but the forms of editText(), which stay as they are, with what has been typed into them and the focus. */
  function drawDocuments() {
    for (const item of $('documents').querySelectorAll('li:not(.edit)')) item.remove();
    $('documents').prepend(...documents.map((document_) => {
      const item = document.createElement('li');
      const title = document.createElement('strong');
      const text = document.createElement('span');
      const state = document.createElement('span');
      const remove = document.createElement('button');
      title.textContent = document_.title;
      text.className = 'text';
      title.dir = text.dir = 'auto';
      text.textContent = document_.text.slice(0, 300);
      state.className = 'hint';
      state.textContent = document_.state;
      remove.type = 'button';
      remove.textContent = 'Remove';
      remove.setAttribute('aria-label', `Remove ${document_.title || 'document'}`);
      remove.onclick = () => {
        documents.splice(documents.indexOf(document_), 1);
        drawDocuments();
      };
      item.append(title, text, state, remove);
      return item;
    }));
  }

  function addDocument(title, text) {
    if (text.trim()) documents.push({title, text: text.trim(), state: 'new'});
    drawDocuments();
  }

  /** Cuts a long text where the server would: chunks are stored and found by their tokens. */
  async function addFile(file) {
    const text = (await file.text()).trim();
    if (!text) return say(`${file.name} is empty`, true);
    const title = file.name.replace(/\.[^.]*$/, '');
    if (text.length < 4 * kChunkTokens) return addDocument(title, text);
    try {
      const split = await (await call('v1/chunks/split', {system_text: $('system').value, text, chunk_tokens: kChunkTokens, overlap_tokens: 0})).json();
      const bytes = new TextEncoder().encode(text);
      split.chunks.forEach((chunk, place) => addDocument(`${title} (${place + 1})`,
          new TextDecoder().decode(bytes.slice(Number(chunk.begin_byte || 0), Number(chunk.end_byte)))));
    } catch (error) {
      say(`${file.name}: ${error.message}`, true);
    }
  }

  function editText() {
    const item = document.createElement('li');
    item.className = 'edit';
    item.innerHTML = '<label>Title <input dir="auto"></label><label>Text <textarea rows="4" dir="auto"></textarea></label><p><button type="button">Add</button> <button type="button">Cancel</button></p>';
    const [add, cancel] = item.querySelectorAll('button');
    const [title, text] = [item.querySelector('input'), item.querySelector('textarea')];
    add.onclick = () => {
      if (!text.value.trim()) return text.focus();
      item.remove();
      addDocument(title.value.trim(), text.value);
      $('add-text').focus();
    };
    cancel.onclick = () => {
      item.remove();
      $('add-text').focus();
    };
    $('documents').append(item);
    title.focus();
  }

  // --- asking --------------------------------------------------------------------------------------------------------

  function say(text, isError = false) {
    $('status').textContent = text;
    $('status').className = isError ? 'error' : '';
  }

  async function storeDocuments(asked, signal) {
    if (!asked.length) return;
    const progress = $('progress');
    progress.hidden = false;
    progress.max = asked.length;
    progress.value = 0;
    const start = performance.now();
    let computed = 0;
    try {
      const answer = await call('v1/chunks', {system_text: $('system').value, documents: asked.map(wire), label: 'ui', stream: true}, signal);
      for await (const event of events(answer)) {
        progress.value = event.done;
        if (!event.already_present) ++computed;
        asked[event.index || 0].state = `${event.num_tokens} tokens, stored`;
        say(`Storing ${event.done} of ${event.total}`);
      }
    } finally {
      progress.hidden = true;
      drawDocuments();
    }
    if (computed) say(`Stored ${computed} chunks in ${((performance.now() - start) / 1000).toFixed(2)} s`);
  }

  function requestBody(asked, blend, attribution) {
    const messages = [{role: 'user', content: $('question').value}];
    if ($('system').value) messages.unshift({role: 'system', content: $('system').value});
    return {
      messages, documents: asked.map(wire), stream: true, temperature: 0, max_tokens: $('max-tokens').value === '' ? undefined : Number($('max-tokens').value),
      kvblend: {blend, attribution},
    };
  }

  // Tokens that attend this much to a document tell so: what makes a clause a citation (docs/http-api.md).
  const kMinAttention = 0.2;

  /** Lets the parts of an answer tell, under the pointer or with the focus, which document they attend to. */
  function markSources(into, attributions, titles) {
    const said = new TextEncoder().encode(into.textContent);
    const parts = [];  // tokens one behind the other that attend to the same document
    for (const token of attributions) {
      const end = Number(token.end_byte || 0);
      const most = token.chunks?.[0];
      const place = most && most.attention >= kMinAttention ? most.index || 0 : null;
      const last = parts.at(-1);
      if (last && last.place === place) {
        last.end = end;
        last.attention = Math.max(last.attention, most?.attention || 0);
      } else {
        parts.push({end, place, attention: most?.attention || 0});
      }
    }
    let at = 0;
    const text = (end) => new TextDecoder().decode(said.subarray(at, at = end));
    const pieces = parts.map(({end, place, attention}) => {
      if (place === null) return text(end);
      const piece = document.createElement('span');
      piece.textContent = text(end);
      piece.className = 'sourced';
      piece.tabIndex = 0;
      piece.dataset.source = `${titles[place] || `document ${place + 1}`} (attention ${Math.round(100 * attention)}%)`;
      piece.title = piece.dataset.source;
      return piece;
    });
    into.setAttribute('aria-live', 'off');  // it has been read out
    into.replaceChildren(...pieces, text(said.length));
    if (parts.some(({place}) => place !== null)) {
      $('blended-source').textContent = 'Point at what is underlined, or move to it with Tab, to see which document it is said from.';
    }
  }

  /** Streams one answer into a pane; returns seconds to the first token and what the server reports. */
  async function answer(pane, asked, blend, signal, attribution = false) {
    const clock = $(`${pane}-clock`);
    const into = $(`${pane}-answer`);
    into.textContent = '';
    into.setAttribute('aria-live', 'polite');
    if (pane === 'blended') $('blended-source').textContent = '';
    const titles = asked.map(({title}) => title);
    const start = performance.now();
    let first = null;
    const elapsed = () => (performance.now() - start) / 1000;
    const show = (time, what) => {
      clock.textContent = `${time.toFixed(2)} s `;
      const small = document.createElement('small');
      small.textContent = what;
      clock.append(small);
    };
    const timer = setInterval(() => first === null && show(elapsed(), 'waiting for the first token'), 50);
    try {
      const response = await call('v1/chat/completions', requestBody(asked, blend, attribution), signal);
      let report = null;
      for await (const event of events(response)) {
        const text = event.choices[0]?.delta?.content;
        if (text && first === null) show(first = elapsed(), 'to the first token');
        if (text) into.append(text);
        if (event.kvblend) report = event.kvblend;
      }
      if (report?.finished?.attributions?.length) markSources(into, report.finished.attributions, titles);
      first ??= elapsed();
      show(first, `to the first token, ${elapsed().toFixed(2)} s in all`);
      return {first, report};
    } catch (error) {
      clock.textContent = '–';
      throw error;
    } finally {
      clearInterval(timer);
    }
  }

  async function ask() {
    running = new AbortController();
    const asked = [...documents];  // both answers are given from these, whatever is added and removed meanwhile
    $('go').disabled = true;
    $('stop').disabled = false;
    // Where this question fails, nothing of the last one stands there as if it were its own.
    for (const id of ['verdict', 'blended-answer', 'blended-source', 'full-answer']) $(id).textContent = '';
    for (const id of ['blended-clock', 'full-clock']) $(id).textContent = '–';
    $('report').replaceChildren();
    try {
      await storeDocuments(asked, running.signal);
      say('Answering…');
      const blend = {policy: $('policy').value, explain: true};
      if ($('ratio').value !== '') blend.ratio = Number($('ratio').value);
      const blended = await answer('blended', asked, blend, running.signal, true);
      if (blended.report) drawReport(blended.report.prompt, $('report'));
      if ($('compare').checked) {
        say('Answering by full prefill…');
        const full = await answer('full', asked, {reuse: 'nothing', store_misses: false}, running.signal);
        const same = $('blended-answer').textContent === $('full-answer').textContent;
        const times = full.first / blended.first;
        $('verdict').textContent = `First token ${times < 1 ? `${(1 / times).toFixed(1)} times later` : `${times.toFixed(1)} times sooner`}; ` +
            (same ? 'the same answer.' : 'another wording.');
      }
      say('Done.');
    } catch (error) {
      say(error.name === 'AbortError' ? 'Stopped.' : error.message, error.name !== 'AbortError');
    } finally {
      running = null;
      $('go').disabled = false;
      $('stop').disabled = true;
      refreshStore();
    }
  }

  // --- the store -----------------------------------------------------------------------------------------------------

  const bytes = (count) => count >= 1e9 ? `${(count / 1e9).toFixed(1)} GB` : count >= 1e6 ? `${(count / 1e6).toFixed(1)} MB` : `${Math.round(count / 1e3)} kB`;

  function storeRow(chunk) {
    const row = document.createElement('tr');
    const cell = (text, className = '') => {
      const made = row.insertCell();
      made.className = className;
      made.append(text);
      return made;
    };
    const key = document.createElement('code');
    key.textContent = chunk.key.slice(0, 12);
    cell(key);
    cell(chunk.label || '');
    cell((chunk.num_tokens || 0).toLocaleString('en'), 'number');
    cell(bytes(Number(chunk.size_bytes || 0)), 'number');
    cell((chunk.tier || '').replace('TIER_', '').toLowerCase().replace(/_/g, ' ') + (chunk.pinned ? ', pinned' : ''));
    cell(String(chunk.hits || 0), 'number');
    const actions = cell('');
    for (const [label, path, body] of [[chunk.pinned ? 'Unpin' : 'Pin', 'v1/chunks/pin', {keys: [chunk.key], pinned: !chunk.pinned}],
      ['Delete', 'v1/chunks/delete', {keys: [chunk.key]}]]) {
      const button = document.createElement('button');
      button.type = 'button';
      button.textContent = label;
      button.setAttribute('aria-label', `${label} chunk ${chunk.key.slice(0, 12)}`);
      button.onclick = async () => {
        try {
          await call(path, body);
        } catch (error) {
          say(error.message, true);
        }
        refreshStore();
      };
      actions.append(button, ' ');
    }
    return row;
  }

  async function refreshStore() {
    try {
      const list = await (await call('v1/chunks?page_size=200')).json();
      const chunks = list.chunks || [];
      $('store').tBodies[0].replaceChildren(...chunks.map(storeRow));
      const tokens = chunks.reduce((sum, chunk) => sum + (chunk.num_tokens || 0), 0);
      const size = chunks.reduce((sum, chunk) => sum + Number(chunk.size_bytes || 0), 0);
      $('store').parentElement.hidden = !chunks.length;
      $('store-summary').textContent = !chunks.length ? 'Nothing is stored yet.' :
        `${chunks.length}${list.next_page_token ? '+' : ''} chunks, ${tokens.toLocaleString('en')} tokens, ${bytes(size)}`;
    } catch (error) {
      $('store-summary').textContent = error.message;
    }
  }

  const refreshLoad = watchLoad(async (signal) => (await call('v1/info', null, signal)).json());

  async function connect() {
    try {
      const model = (await (await call('v1/models')).json()).data[0];
      $('model').textContent = `${model.id}, up to ${model.max_model_len.toLocaleString('en')} tokens`;
      refreshStore();
      refreshLoad();
    } catch (error) {
      $('model').textContent = error.message;
      if (!(error instanceof ApiError) || /starting|loading/.test(error.message)) setTimeout(connectWhenSeen, 2000);
    }
  }

  function connectWhenSeen() {
    if (!document.hidden) return connect();
    document.addEventListener('visibilitychange', connectWhenSeen, {once: true});
  }

  $('ask').onsubmit = (event) => {
    event.preventDefault();
    if (!running) ask();
  };
  $('stop').onclick = () => running?.abort();
  $('files').onchange = async (event) => {
    for (const file of event.target.files) await addFile(file);
    event.target.value = '';
  };
  $('add-text').onclick = editText;
  $('sample').onclick = () => {
    kSample.forEach(([title, text]) => addDocument(title, text));
    $('question').value = kSampleQuestion;
  };
  const tellSource = ({target}) => {
    if (target.dataset?.source) $('blended-source').textContent = `“${target.textContent.trim()}”: ${target.dataset.source}`;
  };
  $('blended-answer').addEventListener('mouseover', tellSource);
  $('blended-answer').addEventListener('focusin', tellSource);
  $('refresh').onclick = refreshStore;
  $('key').onchange = connect;
  const drop = $('drop');
  drop.ondragover = (event) => {
    event.preventDefault();
    drop.classList.add('over');
  };
  drop.ondragleave = () => drop.classList.remove('over');
  drop.ondrop = async (event) => {
    event.preventDefault();
    drop.classList.remove('over');
    for (const file of event.dataTransfer.files) await addFile(file);
  };
  connect();
})();

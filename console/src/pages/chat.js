// The chat: conversations beside it, the log, and the composer.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { chosenModel, Composer, requestOf } from "../chat/composer.js";
import { TurnView } from "../chat/turn.js";
import { conversations, findConversation, loadConversations, newConversation, removeConversation } from "../conversation.js";
import { Welcome } from "./start.js";
import { go, href, route } from "../state.js";
import { Button, Dialog, Empty, html, Icon, Spinner } from "../ui.js";

/** Turns that are rendered at once; those before them follow a few at a time, so that no frame is long. */
const FIRST_TURNS = 12;
const MORE_TURNS = 4;
/** Pixels from the end within which the log follows a growing answer. */
const NEAR_END = 80;

export function Conversations({ onChoose }) {
  const current = route.value.id;
  const [leaving, setLeaving] = useState(null);
  const remove = async () => {
    await removeConversation(leaving.id);
    setLeaving(null);
    if (leaving.id === current) go("chat");
  };
  return html`<section class="conversations" aria-label="Conversations">
    <a class="button new" href=${href("chat")} onClick=${onChoose}><${Icon} name="plus" />New conversation</a>
    <ul>${conversations.value.map(
      (one) => html`<li key=${one.id}><a href=${href("chat", one.id)} aria-current=${one.id === current ? "true" : null} title=${one.title} onClick=${onChoose}>${one.running ? html`<span class="pulse" role="img" aria-label="running"></span>` : null}${one.title}</a>
        <${Button} kind="ghost" icon="trash" label="Delete conversation" onClick=${() => setLeaving(one)} /></li>`,
    )}</ul>
    ${leaving ? html`<${Dialog} title="Delete this conversation?" onClose=${() => setLeaving(null)} actions=${html`<${Button} onClick=${() => setLeaving(null)}>Keep<//><${Button} kind="danger" onClick=${remove}>Delete<//>`}>
      <p>“${leaving.title}” is removed from this browser. The server keeps its records of the answers for as long as it is set to.</p><//>` : null}
  </section>`;
}

export function Chat({ id }) {
  const [known, setKnown] = useState(false);
  useEffect(() => {
    loadConversations().then(() => setKnown(true));
  }, []);
  const fresh = useMemo(() => (id ? null : newConversation()), [id]);
  const conversation = id ? findConversation(id) : fresh;
  useEffect(() => {
    conversation?.load();
  }, [conversation]);
  if (conversation) return html`<${Talk} key=${conversation.meta.id} conversation=${conversation} />`;
  if (!known) return html`<div class="gate"><${Spinner} /></div>`;
  return html`<${Empty} icon="chat" title="This conversation is not in this browser"><p>Conversations are kept in the browser in which they were held. <a href=${href("chat")}>Start a new one</a></p><//>`;
}

function Talk({ conversation }) {
  const [drawer, setDrawer] = useState(false);
  const send = (text, images, request) => {
    conversation.send(text, images, request);
    if (route.value.id !== conversation.meta.id) go("chat", conversation.meta.id, {}, { replace: true });
  };
  const askAgain = async (turn, text) => {
    const { images, request } = turn;
    await conversation.cutFrom(turn);
    send(text, images, { ...requestOf(request.model), model: request.model });
  };
  return html`<div class="chat">
    <header class="chat-head"><${Button} kind="ghost" icon="menu" label="Conversations" class="phone" onClick=${() => setDrawer(true)} /><h1>${conversation.turns.value.length ? conversation.meta.title : "New conversation"}</h1>
      <a class="button ghost bare phone" href=${href("chat")} aria-label="New conversation" title="New conversation"><${Icon} name="plus" /></a></header>
    <${Log} conversation=${conversation} onAskAgain=${askAgain} onSuggest=${(text) => send(text, [], requestOf(chosenModel.value))} />
    <${Composer} conversation=${conversation} onSend=${send} />
    ${drawer ? html`<${Dialog} title="Conversations" onClose=${() => setDrawer(false)}><${Conversations} onChoose=${() => setDrawer(false)} /><//>` : null}
  </div>`;
}

/** The log follows its end as it grows, until the reader scrolls away from it. */
function Log({ conversation, onAskAgain, onSuggest }) {
  const turns = conversation.turns.value;
  const scroller = useRef(null);
  const content = useRef(null);
  const following = useRef(true);
  const lastTop = useRef(0);
  const [away, setAway] = useState(false);
  const [rendered, setRendered] = useState(FIRST_TURNS);
  const views = useRef(new WeakMap());
  const askAgain = useRef(onAskAgain);
  askAgain.current = onAskAgain;

  const missing = turns.length - rendered;
  useEffect(() => {
    if (!conversation.ready.value || rendered === Infinity) return undefined;
    const idle = window.requestIdleCallback ?? ((work) => setTimeout(work, 30));
    const cancel = window.cancelIdleCallback ?? clearTimeout;
    const handle = idle(() => setRendered(missing > MORE_TURNS ? rendered + MORE_TURNS : Infinity), { timeout: 500 });
    return () => cancel(handle);
  }, [rendered, conversation.ready.value]);

  const toEnd = () => {
    if (conversation.turns.value.length) scroller.current.scrollTop = scroller.current.scrollHeight;
  };
  useLayoutEffect(() => {
    following.current = true;
    toEnd();
    const observer = new ResizeObserver(() => following.current && toEnd());
    observer.observe(content.current);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    following.current = true;
    setAway(false);
    toEnd();
  }, [turns.length]);
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = scroller.current;
    // Only a reader moves the log up; what is added at its end does not.
    if (scrollHeight - scrollTop - clientHeight < NEAR_END) following.current = true;
    else if (scrollTop < lastTop.current) following.current = false;
    lastTop.current = scrollTop;
    if (away === following.current) setAway(!following.current);
  };
  const view = (turn) => {
    if (!views.current.has(turn)) views.current.set(turn, html`<${TurnView} key=${turn.id} turn=${turn} conversation=${conversation} onAskAgain=${(...given) => askAgain.current(...given)} />`);
    return views.current.get(turn);
  };
  return html`<div class="log-frame">
    <div class="log" ref=${scroller} role="log" aria-label="Conversation" aria-busy=${conversation.running ? "true" : null} tabindex="0" onScroll=${onScroll}>
      <div class="column" ref=${content}>${conversation.ready.value && turns.length === 0 ? html`<${Welcome} model=${chosenModel.value} onSuggest=${onSuggest} />` : null}${(missing > 0 ? turns.slice(missing) : turns).map(view)}</div>
    </div>
    ${away ? html`<${Button} class="to-end" icon="down" label="Go to the end" onClick=${toEnd} />` : null}
  </div>`;
}

// Keeps conversations in the browser's IndexedDB: one record for each conversation, one for each of its turns.
// Where the browser stores nothing, they last as long as the page.
const VERSION = 1;
/** Milliseconds after which a database that does not open is done without: messages wait for it. */
const LONGEST_OPENING = 10_000;

let opening = null;

function database() {
  opening ??= new Promise((resolve) => {
    let request;
    try {
      request = indexedDB.open("toolgate", VERSION);
    } catch {
      resolve(null);
      return;
    }
    request.onupgradeneeded = () => {
      request.result.createObjectStore("conversations", { keyPath: "id" }).createIndex("owner", "owner");
      request.result.createObjectStore("turns", { keyPath: "id" }).createIndex("conversation", "conversation");
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => resolve(null);
    setTimeout(() => resolve(null), LONGEST_OPENING);
  });
  return opening;
}

async function transact(stores, mode, work) {
  const opened = await database();
  if (!opened) return null;
  return new Promise((resolve, reject) => {
    const transaction = opened.transaction(stores, mode);
    const request = work(...stores.map((name) => transaction.objectStore(name)));
    transaction.oncomplete = () => resolve(request?.result ?? null);
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

/** The conversations of a key, the last used first. */
export async function listConversations(owner) {
  const found = (await transact(["conversations"], "readonly", (store) => store.index("owner").getAll(owner))) ?? [];
  return found.sort((a, b) => b.updated - a.updated);
}

/** The turns of a conversation in their order. */
export async function loadTurns(conversation) {
  const found = (await transact(["turns"], "readonly", (store) => store.index("conversation").getAll(conversation))) ?? [];
  return found.sort((a, b) => a.position - b.position);
}

export const saveConversation = (conversation) => transact(["conversations"], "readwrite", (store) => store.put(conversation)).catch(() => {});
export const saveTurn = (turn) => transact(["turns"], "readwrite", (store) => store.put(turn)).catch(() => {});
export const deleteTurn = (id) => transact(["turns"], "readwrite", (store) => store.delete(id)).catch(() => {});

export function deleteConversation(id) {
  return transact(["conversations", "turns"], "readwrite", (conversations, turns) => {
    conversations.delete(id);
    const cursor = turns.index("conversation").openCursor(id);
    cursor.onsuccess = () => {
      if (!cursor.result) return;
      cursor.result.delete();
      cursor.result.continue();
    };
  }).catch(() => {});
}

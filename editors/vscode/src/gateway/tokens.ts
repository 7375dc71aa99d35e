/**
 * Counts tokens by the kinds of characters, in this process.
 *
 * The editor asks thousands of times in one turn of its agent, one after the other, so that no question may leave the process.
 */

const NON_ASCII = /[^\u0000-\u007f]/g

/** Estimate the tokens of a text: four letters of English to a token, one for each character of other scripts. */
export function countTokens(text: string): number {
  const others = text.match(NON_ASCII)?.length ?? 0
  return Math.ceil((text.length - others) / 4 + others * 0.9)
}

/** What a picture costs, about, with providers that count it by its size. */
export const PICTURE_TOKENS = 1000
/** What a message costs beyond its content. */
export const MESSAGE_TOKENS = 4
